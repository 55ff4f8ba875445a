"""Offline throughput as a table and in sentences."""

from collections.abc import Iterable, Sequence

from rich.table import Table

from fluidserve.report.layout import plain_table
from fluidserve.report.numbers import half_width, three_digits
from fluidserve.results import OfflineResult
from fluidserve.search.plan import TIE


def offline_table(rows: Sequence[OfflineResult]) -> Table:
    """A line for each deployment, best first."""
    table = plain_table(
        "deployment",
        *("GPUs", "req/s", "formulas", "output\ntokens/s", "tokens/s\nper GPU"),
    )
    table.add_column("full", min_width=8)
    for row in rows:
        table.add_row(
            row.deployment.label,
            str(row.gpus),
            three_digits(row.rate) + half_width(row.interval),
            three_digits(row.formulas),
            three_digits(row.output_token_rate),
            three_digits(row.token_rate_per_gpu),
            row.binding.replace("_", " "),
        )
    return table


def offline_sentences(best: Iterable[OfflineResult]) -> list[str]:
    """Which kind finishes most tokens per GPU, and by how much."""
    first, *others = sorted(best, key=lambda row: -row.token_rate_per_gpu)
    told = []
    for row in others:
        more = first.token_rate_per_gpu / row.token_rate_per_gpu - 1.0
        told.append(
            f"no more than {row.kind} ({row.deployment.label})"
            if more <= TIE
            else f"{more:.0%} more than {row.kind} ({row.deployment.label})"
        )
    return [
        f"{first.kind.capitalize()} ({first.deployment.label}) finishes "
        f"{three_digits(first.token_rate_per_gpu)} tokens/s per GPU, prompts included"
        + "".join(f", {text}" for text in told)
        + ".",
        "req/s: event simulator, all requests there from the start, mean of three runs ± half a "
        "95% interval; formulas: the rate that fills the instances, an upper bound where large "
        "pieces of prompts meet full memory.",
    ]
