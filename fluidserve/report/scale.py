"""SLO scales as a table and in sentences."""

from collections.abc import Sequence

from rich.table import Table

from fluidserve.report.layout import plain_table
from fluidserve.report.numbers import half_width, three_digits
from fluidserve.results import ScaleResult
from fluidserve.search.plan import TIE
from fluidserve.specs.slo import Slo, limits_of
from fluidserve.units import format_time


def scale_table(rows: Sequence[ScaleResult], slo: Slo) -> Table:
    """A line for each deployment: its factor by both ways, and the limits that it leaves."""
    limits = limits_of(slo)
    checked = any(row.simulated is not None for row in rows)
    table = plain_table(
        "deployment",
        *("GPUs", "req/s", "SLO scale\nformulas"),
        *(["SLO scale\nsimulated"] if checked else []),
        *(f"{limit.metric.upper()}\nlimit" for limit in limits),
    )
    for row in rows:
        table.add_row(
            row.deployment.label,
            str(row.gpus),
            three_digits(row.rate),
            three_digits(row.formulas),
            *([_simulated(row)] if checked else []),
            *(format_time(limit.time * row.scale) for limit in limits),
        )
    return table


def _simulated(row: ScaleResult) -> str:
    if row.simulated is None:
        return "-"
    value, low, high = row.simulated
    return three_digits(value) + half_width((low, high))


def scale_sentences(rows: Sequence[ScaleResult], rate_per_gpu: float | None) -> list[str]:
    """Which kind keeps the tightest promise, and by how much."""
    best: dict[str, ScaleResult] = {}
    for row in sorted(rows, key=lambda r: r.scale):
        best.setdefault(row.kind, row)
    (first, tightest), *others = best.items()
    at = "" if rate_per_gpu is None else f"At {rate_per_gpu:g} requests/s per GPU: "
    told = [
        f"{first} keeps all limits at {tightest.scale:.3g} times the SLO "
        f"({tightest.deployment.label})"
    ]
    for kind, row in others:
        more = row.scale / tightest.scale
        told.append(
            f"{kind} the same ({row.deployment.label})"
            if more < 1.0 + TIE
            else f"{kind} needs limits {more:.2f} times as loose ({row.deployment.label})"
        )
    return [f"{at}{'; '.join(told)}."]
