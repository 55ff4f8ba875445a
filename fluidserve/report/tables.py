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
    in_one_unit,
    large,
    percent,
    three_digits,
    tpot_seconds,
    with_unit,
)
from fluidserve.results import DeploymentResult, Latency, Phases
from fluidserve.verify.crosscheck import difference

_FEWEST_SHOWN = 1e-3


def plan_table(rows: Sequence[DeploymentResult]) -> Table:
    """Deployments, best first, with what they do at their rate.

    An asterisk marks those that cannot be told apart from the first one.
    """
    starred = sum(r.tied for r in rows) > 1
    ttft_unit, ttft = in_one_unit([r.ttft.p90 for r in rows])
    tpot_unit, tpot = in_one_unit([tpot_seconds(r.tpot, r.attainment)[2] for r in rows])
    table = plain_table(
        "deployment",
        *("GPUs", "req/s", "per\nGPU"),
        *(f"TTFT\n{ttft_unit}", f"TPOT\n{tpot_unit}"),
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
            three_digits(r.goodput_per_gpu),
            ttft[i],
            tpot[i],
            "/".join(_bare_percent(x) for x in loads),
            three_digits(r.batch if r.batch >= _FEWEST_SHOWN else 0.0),
            _bare_percent(r.kv_use),
            r.binding.replace("_", " "),
            Text(r.confidence, style=CONFIDENCE_STYLE[r.confidence]),
        )
    return table


def crosscheck_table(rows: Sequence[DeploymentResult]) -> Table:
    """Formulas beside the event simulator, for the rows that were simulated."""
    checked = [(r, r.simulated) for r in rows if r.simulated is not None]
    ttft_unit, ttft = in_one_unit([x for r, s in checked for x in (r.ttft.p90, s.ttft.p90)])
    tpot_unit, tpot = in_one_unit(
        [x for r, s in checked for x in (tpot_seconds(r.tpot, r.attainment)[2], s.tpot.p90)]
    )
    table = plain_table(
        "cross-check",
        "goodput /s\nformulas",
        "goodput /s\nsimulated",
        "differ-\nence",
        "SLO met\nform./sim.",
        f"TTFT P90 {ttft_unit}\nform./sim.",
        f"TPOT P90 {tpot_unit}\nform./sim.",
    )
    for i, (r, s) in enumerate(checked):
        table.add_row(
            r.deployment.label,
            three_digits(r.goodput),
            three_digits(s.goodput) + _half_width(s.goodput_interval),
            f"{difference(r):+.0%}" if math.isfinite(difference(r)) else "-",
            f"{percent(r.attainment)}/{percent(s.attainment)}",
            "/".join(ttft[2 * i : 2 * i + 2]),
            "/".join(tpot[2 * i : 2 * i + 2]),
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


def latency_table(analysis: DeploymentResult, summary: Summary) -> Table:
    """TTFT and TPOT of one deployment, simulated and by the formulas."""
    table = plain_table("", "mean", "P50", "P90", "P99")
    for name, found, formula in (
        ("TTFT", summary.ttft, _figures(analysis.ttft)),
        ("TPOT", summary.tpot, tpot_seconds(analysis.tpot, analysis.attainment)),
    ):
        unit, texts = in_one_unit([*_figures(found), *formula])
        table.add_row(f"{name} simulated, {unit}", *texts[:4])
        table.add_row(f"{name} formulas, {unit}", *texts[4:], end_section=True)
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
    table.add_row("throughput, requests/s", three_digits(summary.throughput), "")
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


def _half_width(interval: tuple[float, float]) -> str:
    low, high = interval
    return f" ±{(high - low) / 2:.2g}" if math.isfinite(high - low) else ""


def _figures(times: Quantiles | Latency) -> list[float]:
    return [times.mean, times.p50, times.p90, times.p99]
