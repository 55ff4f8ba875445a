"""Offline throughput as a table and in sentences."""

import math
from collections.abc import Mapping, Sequence

from rich.table import Table

from fluidserve.report.layout import plain_table
from fluidserve.report.numbers import three_digits
from fluidserve.results import OfflineResult
from fluidserve.search.plan import TIE
from fluidserve.specs.deployment import Kind


def offline_table(rows: Sequence[OfflineResult]) -> Table:
    """A line for each deployment, best first."""
    table = plain_table(
        "deployment",
        *("GPUs", "req/s", "formulas", "output\ntokens/s", "tokens/s\nper GPU"),
    )
    table.add_column("full", min_width=8)
    for row in rows:
        low, high = row.interval
        half = f" ±{0.5 * (high - low):.1g}" if math.isfinite(high - low) else ""
        table.add_row(
            row.deployment.label,
            str(row.gpus),
            three_digits(row.rate) + half,
            three_digits(row.formulas),
            three_digits(row.output_token_rate),
            three_digits(row.token_rate_per_gpu),
            row.binding.replace("_", " "),
        )
    return table


def offline_sentences(found: Mapping[Kind, Sequence[OfflineResult]]) -> list[str]:
    """Which kind finishes most tokens per GPU, and by how much."""
    best = sorted((rows[0] for rows in found.values()), key=lambda r: -r.token_rate_per_gpu)
    first, *others = best
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
