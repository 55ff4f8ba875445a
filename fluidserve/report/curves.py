"""Curves over the rate as tables and as flat lines."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.table import Table

from fluidserve.report.layout import plain_table
from fluidserve.report.numbers import in_one_unit, percent, three_digits
from fluidserve.verify.curves import LEVELS, Curve, Point

LATENCIES = ("ttft", "tpot", "itl")
"""Columns of times; those of ITL by the formulas are there only where the SLO limits it."""


def curve_tables(curves: Sequence[Curve]) -> list[Table]:
    """A table for each deployment: a line for each rate, simulated numbers beside the formulas."""
    return [_table(curve) for curve in curves]


def _table(curve: Curve) -> Table:
    points = {point.rate: point for point in curve.points}
    heads, columns = [], []
    for name in LATENCIES:
        if (formulas := getattr(curve, name)) is None:
            continue
        unit, texts = _texts(formulas, [getattr(p, name) for p in curve.points])
        heads += [f"{name.upper()} {unit}\nP50/P90/P99", "simulated"]
        columns.append(texts)
    table = plain_table(curve.row.deployment.label, "SLO met", "sim.", *heads, "through-\nput sim.")
    count = len(curve.rate)
    order = list(points)
    for i, rate in enumerate(curve.rate):
        point = points.get(float(rate))
        j = count + order.index(float(rate)) if point else None
        table.add_row(
            f"{three_digits(float(rate))}/s",
            percent(float(curve.attainment[i])),
            _share(point),
            *(text for of in columns for text in (of[i], of[j] if j is not None else "")),
            three_digits(point.throughput) if point else "",
        )
    return table


def _texts(
    formulas: np.ndarray, simulated: Sequence[Sequence[float] | None]
) -> tuple[str, list[str]]:
    """Quantiles of each rate, then of each point, in one unit."""
    size = len(LEVELS)
    every = [*formulas.T.tolist(), *(list(x or [math.nan] * size) for x in simulated)]
    unit, texts = in_one_unit([x for row in every for x in row])
    missing = [False] * formulas.shape[1] + [x is None for x in simulated]
    joined = ["/".join(texts[i : i + size]) for i in range(0, len(texts), size)]
    for i, row in enumerate(every):
        if not math.isfinite(row[0]):
            joined[i] = "" if missing[i] else "unstable"
    return unit, joined


def _share(point: Point | None) -> str:
    if point is None:
        return ""
    return f"{percent(point.attainment)} ±{50.0 * (point.high - point.low):.0f}"


def curves_sentences(curves: Sequence[Curve]) -> list[str]:
    """Goodputs, and what the columns are."""
    told = [
        f"{c.row.deployment.label} {three_digits(c.row.goodput)} requests/s on {c.row.gpus} GPUs "
        f"({c.row.confidence})"
        for c in curves
    ]
    sentences = [f"Goodput: {'; '.join(told)}."]
    if any(c.points for c in curves):
        sentences.append(
            "sim.: event simulator, attainment ± half a 95% interval in points; a run above "
            "capacity grows with its length."
        )
    return sentences


def flat_points(curve: Curve) -> list[dict[str, Any]]:
    """One line for each rate; the unit of a column is the end of its name."""
    points = {point.rate: point for point in curve.points}
    lines = []
    for i, rate in enumerate(curve.rate):
        line: dict[str, Any] = {
            "label": curve.row.deployment.label,
            "kind": curve.row.kind,
            "gpus": curve.row.gpus,
            "rate_per_s": float(rate),
            "attainment": float(curve.attainment[i]),
        }
        for name in LATENCIES:
            values = getattr(curve, name)
            for k, level in enumerate(LEVELS):
                line[f"{name}_{level}_s"] = "" if values is None else _number(float(values[k, i]))
        point = points.get(float(rate))
        line["simulated_attainment"] = point.attainment if point else ""
        line["simulated_attainment_low"] = point.low if point else ""
        line["simulated_attainment_high"] = point.high if point else ""
        for name in LATENCIES:
            found = getattr(point, name) if point else None
            for k, level in enumerate(LEVELS):
                line[f"simulated_{name}_{level}_s"] = found[k] if found else ""
        line["simulated_throughput_per_s"] = point.throughput if point else ""
        lines.append(line)
    return lines


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else ""
