"""Answers as tables for a terminal of 80 columns and more."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from fluidserve.eventsim import Quantiles, Summary, Utilisation
from fluidserve.report.layout import CONFIDENCE_STYLE, plain_table
from fluidserve.report.numbers import (
    half_width,
    in_one_unit,
    large,
    percent,
    three_digits,
    tpot_seconds,
    with_unit,
)
from fluidserve.results import DeploymentResult, Latency, Phases
from fluidserve.specs.slo import Slo, limits_of, percentile_name
from fluidserve.verify.crosscheck import claimed, difference

_FEWEST_SHOWN = 1e-3


def plan_table(rows: Sequence[DeploymentResult], slo: Slo) -> Table:
    """Deployments, best first, with what they do at their rate.

    Latencies are P90, or the percentile that a limit names, which then stands in the header. An
    asterisk marks those that cannot be told apart from the first one. With end-to-end latency or
    ITL there is no room for the goodput per GPU.
    """
    starred = sum(r.tied for r in rows) > 1
    wide = any(r.e2e is not None or r.itl is not None for r in rows)
    columns = latency_columns([(r.ttft, shown_tpot(r), r.e2e, r.itl) for r in rows], slo)
    table = plain_table(
        "deployment",
        *("GPUs", "req/s", *([] if wide else ["per\nGPU"])),
        *latency_headers(columns),
        *("use %\nP/link/D", "batch", "KV\n%"),
    )
    table.add_column("binds", min_width=8)
    table.add_column("trust", no_wrap=True)
    for i, r in enumerate(rows):
        loads = (r.prefill_load, r.link_load, r.decode_load)
        table.add_row(
            r.deployment.label + ("*" if r.tied and starred else ""),
            str(r.gpus),
            three_digits(r.goodput),
            *([] if wide else [three_digits(r.goodput_per_gpu)]),
            *(texts[i] for *_, texts in columns),
            "/".join(_bare_percent(x) for x in loads),
            three_digits(r.batch if r.batch >= _FEWEST_SHOWN else 0.0),
            _bare_percent(r.kv_use),
            r.binding.replace("_", " "),
            Text(r.confidence, style=CONFIDENCE_STYLE[r.confidence]),
        )
    return table


def crosscheck_table(rows: Sequence[DeploymentResult], slo: Slo) -> Table:
    """Formulas beside the event simulator, for the rows that were simulated.

    With end-to-end latency or ITL there is no room for the attainment.
    """
    wide = any(r.e2e is not None or r.itl is not None for r in rows)
    checked = [(r, r.simulated) for r in rows if r.simulated is not None]
    times = []
    for r, s in checked:
        times.append((r.ttft, shown_tpot(r), r.e2e, r.itl))
        times.append((s.ttft, s.tpot, None if r.e2e is None else s.e2e, s.itl))
    columns = latency_columns(times, slo)
    what = "goodput /s" if all(r.concurrency is None for r in rows) else "through-\nput /s"
    table = plain_table(
        "cross-check",
        f"{what}\nformulas",
        f"{what}\nsimulated",
        "differ-\nence",
        *([] if wide else ["SLO met\nform./sim."]),
        *(f"{name} {named or 'P90'} {unit}\nform./sim." for name, named, unit, _ in columns),
    )
    for i, (r, s) in enumerate(checked):
        table.add_row(
            r.deployment.label,
            three_digits(claimed(r)),
            three_digits(s.goodput) + half_width(s.goodput_interval),
            f"{difference(r):+.0%}" if math.isfinite(difference(r)) else "-",
            *([] if wide else [f"{percent(r.attainment)}/{percent(s.attainment)}"]),
            *("/".join(texts[2 * i : 2 * i + 2]) for *_, texts in columns),
        )
    return table


def replay_table(rows: Sequence[DeploymentResult]) -> Table:
    """What became of a recording at its own speed, for the rows that replayed one."""
    replayed = [(r, r.replayed) for r in rows if r.replayed is not None]
    times = [(s.ttft.p50, s.ttft.p90, s.ttft.p99) for _, s in replayed]
    ttft_unit, ttft = in_one_unit([x for row in times for x in row])
    tpot_unit, tpot = in_one_unit([s.tpot.p90 for _, s in replayed])
    table = plain_table(
        "replay", "SLO\nmet", f"TTFT {ttft_unit}\nP50/P90/P99", f"TPOT {tpot_unit}\nP90"
    )
    for i, (r, s) in enumerate(replayed):
        quantiles = "/".join(ttft[3 * i : 3 * i + 3])
        table.add_row(r.deployment.label, f"{s.attainment:.1%}", quantiles, tpot[i])
    return table


LatencyColumn = tuple[str, str, str, list[str]]
"""Name; percentile where it is not the usual P90; unit; texts by row."""


def latency_headers(columns: Sequence[LatencyColumn]) -> list[str]:
    """Headers of two lines: the metric, and what of it in which unit."""
    return [
        f"{name}\n{named} {unit}" if named else f"{name}\n{unit}"
        for name, named, unit, _ in columns
    ]


def latency_columns(rows: Sequence[tuple[Latency | None, ...]], slo: Slo) -> list[LatencyColumn]:
    """TTFT, TPOT and, where known, end-to-end latency and ITL, each in one unit."""
    shares = {limit.metric: limit.share for limit in limits_of(slo)}
    columns = []
    for metric, cells in zip(("ttft", "tpot", "e2e", "itl"), zip(*rows, strict=True), strict=True):
        share = shares.get(metric)
        if None in cells:
            continue
        unit, texts = in_one_unit([_at(x, share) for x in cells])
        named = "" if share in (None, 0.9) else percentile_name(share)
        columns.append((metric.upper(), named, unit, texts))
    return columns


def shown_tpot(row: DeploymentResult) -> Latency:
    """TPOT by the formulas; ``nan`` where no request has a second token."""
    mean, p50, p90, p99 = tpot_seconds(row.tpot, row.attainment)
    at_share = p90 if math.isnan(p90) else row.tpot.at_share
    return Latency(mean=mean, p50=p50, p90=p90, p99=p99, at_share=at_share)


def _at(times: Latency | Quantiles, share: float | None) -> float:
    """The quantile at a share, or P90 where none is asked for."""
    return times.p90 if share is None or times.at_share is None else times.at_share


def latency_table(analysis: DeploymentResult, summary: Summary, slo: Slo) -> Table:
    """Latencies of one deployment, simulated and by the formulas.

    Where limits name percentiles of their own, these have a column. Longest gaps of requests are
    simulated only.
    """
    shares = {limit.metric: limit.share for limit in limits_of(slo)}
    own = any(share is not None for share in shares.values())
    table = plain_table("", "mean", "P50", "P90", "P99", *(["at its limit's"] if own else []))
    both: list[tuple[str, Quantiles, Latency | None]] = [
        ("TTFT", summary.ttft, analysis.ttft),
        ("TPOT", summary.tpot, shown_tpot(analysis)),
    ]
    if analysis.e2e is not None:
        both.append(("E2E", summary.e2e, analysis.e2e))
    if summary.gaps is not None:
        both.append(("ITL", summary.gaps.itl, analysis.itl))
        both.append(("longest gap", summary.gaps.longest, None))
    for name, found, formula in both:
        share = shares.get(name.lower())
        known = [("simulated", found), *([] if formula is None else [("formulas", formula)])]
        unit, texts = in_one_unit([x for _, times in known for x in _figures(times, share)])
        size = len(texts) // len(known)
        for i, (source, _) in enumerate(known):
            row = texts[i * size : (i + 1) * size]
            at = [f"{percentile_name(share)}: {row[4]}"] if share is not None else []
            table.add_row(f"{name} {source}, {unit}", *row[:4], *at)
        table.add_section()
    return table


def phases_table(analysis: DeploymentResult, simulated: Phases) -> Table:
    """Where the time of a mean request goes, simulated and by the formulas."""
    names = [f.name.replace("_", " ") for f in dataclasses.fields(Phases)]
    columns = [dataclasses.astuple(simulated), dataclasses.astuple(analysis.phases)]
    unit, texts = in_one_unit([t for column in columns for t in column])
    table = plain_table(f"mean time, {unit}", "simulated", "formulas")
    for i, name in enumerate(names):
        table.add_row(name.replace("handover", "hand-over"), texts[i], texts[len(names) + i])
    return table


def load_table(analysis: DeploymentResult, summary: Summary, use: Utilisation) -> Table:
    """Attainment, throughput and loads of one deployment, simulated and by the formulas."""
    met = summary.attainment
    interval = f"{met.value:.1%} ({met.low:.1%} to {met.high:.1%})"
    table = plain_table("", "simulated", "formulas")
    table.add_row("SLO met", interval, f"{analysis.attainment:.1%}")
    formulas = "" if analysis.concurrency is None else three_digits(analysis.rate)
    table.add_row("throughput, requests/s", three_digits(summary.throughput), formulas)
    table.add_row("prefill busy", percent(use.prefill), percent(analysis.prefill_load))
    table.add_row("link busy", percent(use.link), percent(analysis.link_load))
    table.add_row("decode busy", percent(use.decode), "")
    table.add_row("decode load (demand / full batch)", "", percent(analysis.decode_load))
    table.add_row(
        "batch per decode instance", three_digits(use.decode_batch), three_digits(analysis.batch)
    )
    table.add_row("KV memory of decode", percent(use.decode_kv), percent(analysis.kv_use))
    return table


def models_table(models: Sequence[dict[str, Any]]) -> Table:
    """Descriptions of models, one a line; `fixed` is what full windows and state take."""
    table = plain_table(
        "model", "parameters", "active", "weights", "KV/token", "layers", "attention"
    )
    for m in models:
        fixed = m["kv_window_bytes"] + m["state_bytes"]
        table.add_row(
            m["name"],
            large(m["parameters"]),
            large(m["active_parameters"]),
            f"{large(m['weight_bytes'])}B",
            f"{m['kv_bytes_per_token'] / 1024:.4g}KiB",
            f"{large(fixed)}B" if fixed else "",
            m["attention"],
        )
    return table


def gpus_table(gpus: Sequence[dict[str, Any]]) -> Table:
    """Descriptions of accelerators, one a line."""
    fields = {
        "memory": "memory",
        "bandwidth": "bandwidth",
        "flop_rate_16": "16-bit\npeak",
        "flop_rate_8": "8-bit\npeak",
        "scale_up_bandwidth": "scale-up\nper GPU",
        "scale_out_bandwidth": "scale-out\nper node",
        "gpus_per_node": "GPUs\n/node",
    }
    table = plain_table("GPU", *fields.values(), "step\ntimes")
    for gpu in gpus:
        numbers = [gpu["numbers"][field] for field in fields]
        cells = [with_unit(n["value"], n["unit"]) for n in numbers]
        table.add_row(gpu["name"], *cells, "fitted" if gpu["measured"] else "assumed")
    return table


def gpu_table(gpu: dict[str, Any]) -> Table:
    """One accelerator with the source of each number."""
    table = plain_table(gpu["name"], "value")
    table.add_column("source", overflow="fold")
    for field, number in gpu["numbers"].items():
        value = with_unit(number["value"], number["unit"])
        table.add_row(field.replace("_", " "), value, number["source"])
    return table


def pairs_table(values: dict[str, Any]) -> Table:
    """Names and values, one pair a line."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in values.items():
        text = f"{value:,.6g}" if isinstance(value, float) else str(value)
        table.add_row(name.replace("_", " "), text)
    return table


def _bare_percent(share: float) -> str:
    return percent(share).removesuffix("%")


def _figures(times: Quantiles | Latency, share: float | None) -> list[float]:
    own = [] if share is None else [_at(times, share)]
    return [times.mean, times.p50, times.p90, times.p99, *own]
