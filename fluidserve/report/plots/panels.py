"""The panels of a picture; each draws its numbers on an axes."""

import itertools
from typing import Any

import numpy as np

from fluidserve.deploy.latency import quantile_of
from fluidserve.eventsim.records import Records
from fluidserve.report.numbers import large
from fluidserve.report.plots.points import (
    Curve,
    Interference,
    RooflinePoint,
    Runs,
    Tradeoff,
    pareto_front,
    typical_requests,
)
from fluidserve.specs.deployment import Pool
from fluidserve.specs.hardware import GpuSpec
from fluidserve.specs.slo import Slo, joint_limits
from fluidserve.units import format_time

BLUE, ORANGE, GREEN, RED, GREY = "#2f6fb3", "#d9822b", "#3a9a5b", "#b8413a", "#9aa0a6"
_PHASES = {
    "queue": (GREY, "prefill_start"),
    "prefill": (BLUE, "prefill_end"),
    "hand-over": (ORANGE, "kv_end"),
    "first step": (RED, "first_step"),
    "decode": (GREEN, "last_token"),
}
_MOST_TICKS = 400
_LEVELS = 300


def draw_tradeoff(axes: Any, points: Tradeoff, metric: str, slo: Slo) -> None:
    """A metric against requests/s per GPU, with the Pareto front.

    Args:
      axes: of matplotlib.
      points: deployments at several loads.
      metric: ``ttft`` or ``tpot``.
      slo: the promise, whose limit is drawn where it has one.
    """
    limit, (_, percentile) = float(getattr(slo, metric)), quantile_of(slo, metric)
    times, throughput = 1e3 * getattr(points, metric), points.throughput
    shown = np.isfinite(times) & (throughput > 0)
    times, throughput, meets = times[shown], throughput[shown], points.meets[shown]
    for these, colour, name in ((~meets, GREY, "misses the SLO"), (meets, BLUE, "meets the SLO")):
        if these.any():
            axes.plot(
                times[these], throughput[these], ".", ms=3, color=colour, alpha=0.5, label=name
            )
    front = pareto_front(times, throughput)
    axes.step(times[front], throughput[front], where="post", color=ORANGE, lw=1.6, label="front")
    if np.isfinite(limit):
        axes.axvline(1e3 * limit, color=RED, ls="--", lw=1, label="limit")
    axes.set(
        xscale="log",
        xlabel=f"{percentile} {metric.upper()}, ms",
        ylabel="requests/s per GPU",
        title=f"Throughput per GPU against {metric.upper()}",
    )
    axes.set_ylim(bottom=0)
    _plain_ticks(axes.xaxis)
    axes.legend(fontsize=7, loc="upper left")


def draw_attainment(
    axes: Any, line: Curve, runs: Runs | None, slo: Slo, goodput: float, label: str
) -> None:
    """Attainment over the arrival rate by the formulas, with simulated points."""
    axes.plot(line.rate, 100.0 * line.attainment, color=BLUE, label="formulas")
    if runs is not None:
        low, high = 100.0 * (runs.attainment - runs.low), 100.0 * (runs.high - runs.attainment)
        axes.errorbar(
            runs.rate,
            100.0 * runs.attainment,
            yerr=np.maximum(np.nan_to_num(np.stack([low, high]), posinf=0.0), 0.0),
            fmt="o",
            ms=4,
            capsize=2,
            color=ORANGE,
            label="simulated, 95% interval",
        )
    if joint_limits(slo):
        target = 100.0 * float(slo.attainment)
        axes.axhline(target, color=RED, ls="--", lw=1, label=f"SLO: {target:g}%")
    axes.axvline(goodput, color=GREY, ls=":", lw=1, label="goodput")
    axes.set(
        xlabel="requests/s", ylabel="requests that meet the SLO, %", title=f"Attainment of {label}"
    )
    axes.set_ylim(-3, 103)
    axes.set_xlim(left=0)
    axes.legend(fontsize=7, loc="lower left")


def draw_latency(axes: Any, line: Curve, slo: Slo, goodput: float, label: str) -> None:
    """TTFT and TPOT over the arrival rate, each over its limit where it has one."""
    for name, colour in (("ttft", BLUE), ("tpot", GREEN)):
        limit = float(getattr(slo, name))
        times = getattr(line, name)
        reference = limit if np.isfinite(limit) else float(times[0])
        against = f"limit {format_time(limit)}" if np.isfinite(limit) else "its value when idle"
        title = f"{quantile_of(slo, name)[1]} {name.upper()} over {against}"
        axes.plot(line.rate, times / reference, color=colour, label=title)
    axes.axhline(1.0, color=RED, ls="--", lw=1)
    axes.axvline(goodput, color=GREY, ls=":", lw=1, label="goodput")
    axes.set(
        xlabel="requests/s", ylabel="latency over limit", title=f"Latency of {label}", yscale="log"
    )
    axes.set_xlim(left=0)
    _plain_ticks(axes.yaxis)
    axes.legend(fontsize=7, loc="upper left")


def draw_timeline(axes: Any, records: Records, rate: float) -> None:
    """Requests with a median, a long and a very long TTFT, from arrival to the last token."""
    chosen = typical_requests(records)
    names = ("median", "P90", "P99")
    for y, index in enumerate(chosen):
        marks = [float(records.arrival[index])]
        marks += [float(getattr(records, field)[index]) for _, field in _PHASES.values()]
        begin = marks[0]
        for (start, end), (name, (colour, _)) in zip(
            itertools.pairwise(marks), _PHASES.items(), strict=True
        ):
            axes.barh(
                y, end - start, left=start - begin, height=0.5, color=colour,
                label=name if y == 0 else None,
            )  # fmt: skip
        if records.gaps is not None:
            tokens = records.first_token[index] - begin + np.cumsum(records.gaps.of(index))
            step = max(len(tokens) // _MOST_TICKS, 1)
            axes.plot(
                tokens[::step], np.full(len(tokens[::step]), y + 0.33), "|", ms=4, color="0.3"
            )
    labels = [
        f"{name} TTFT\n{records.n_in[i]:,}+{records.n_out[i]:,} tokens"
        for name, i in zip(names, chosen, strict=True)
    ]
    axes.set_yticks(range(len(chosen)), labels, fontsize=7)
    axes.set(xlabel="s after arrival", title=f"Simulated requests at {rate:.3g} requests/s")
    axes.legend(fontsize=7, loc="upper center", ncols=5, columnspacing=0.8, handlelength=1.0)
    axes.set_ylim(-0.6, len(chosen) - 0.1)


def draw_roofline(axes: Any, gpu: GpuSpec, compute_dtype: str, points: list[RooflinePoint]) -> None:
    """Peak compute and memory of one GPU, and what the passes of the plan achieve."""
    peak, bandwidth = float(gpu.flop_rate(compute_dtype)), float(gpu.bandwidth)
    ridge = peak / bandwidth
    low = min([0.3, *(0.5 * p.intensity for p in points)])
    high = max([20.0 * ridge, *(60.0 * p.intensity for p in points)])  # with room for labels
    x = np.geomspace(low, high, 200)
    axes.loglog(x, np.minimum(peak, bandwidth * x) / 1e12, color="0.2")
    colours = {"prefill": BLUE, "decode": GREEN}
    for point in points:
        y = point.achieved / 1e12
        bound = min(peak, bandwidth * point.intensity)
        axes.plot(point.intensity, y, "o", color=colours[point.phase])
        axes.annotate(
            f"{point.phase}, {point.name}\n{point.achieved / bound:.0%} of the roof",
            (point.intensity, y), textcoords="offset points", xytext=(6, -16), fontsize=7,
        )  # fmt: skip
    axes.axvline(ridge, color=GREY, ls=":", lw=1)
    axes.set(
        xlabel="FLOP per byte",
        ylabel="TFLOP/s per GPU",
        title=f"{gpu.name}, {large(peak)}FLOP/s, ridge at {ridge:.0f} FLOP/B",
    )


def draw_interference(axes: Any, found: Interference, pool: Pool) -> None:
    """Time of an iteration over the prompt tokens in it, for several decode batches."""
    colours = (BLUE, GREEN, ORANGE, RED)
    for batch, times, colour in zip(found.batches, found.times, colours, strict=False):
        axes.plot(found.tokens, 1e3 * times, color=colour, label=f"decode batch {batch}")
        axes.plot(0.0, 1e3 * times[0], "o", ms=4, color=colour)
    shape = f"tp{pool.tp}" + (f" pp{pool.pp}" if pool.pp > 1 else "")
    axes.set(
        xlabel="prompt tokens in the iteration",
        ylabel="iteration time, ms",
        title=f"Decode with prompts inside, {shape}, context {found.context:,.0f}",
    )
    axes.set_xlim(left=-0.01 * float(found.tokens[-1]))
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7, loc="upper left")


def draw_gaps(axes: Any, records: Records, slo: Slo, label: str) -> None:
    """Share of the simulated gaps, and of the longest gaps of requests, that are above a time.

    Records without gaps leave the panel empty.
    """
    gaps = records.gaps
    if gaps is None or not len(gaps.values):
        axes.set_axis_off()
        return
    parts = ((gaps.values, BLUE, "all gaps"), (gaps.longest(), ORANGE, "longest of a request"))
    for values, colour, name in parts:
        levels = 1.0 - np.geomspace(1.0 / len(values), 1.0, _LEVELS)
        axes.plot(1e3 * np.quantile(values, levels), 1.0 - levels, color=colour, label=name)
    if slo.itl is not None:
        axes.axvline(1e3 * float(slo.itl), color=RED, ls="--", lw=1, label="limit")
    axes.set(
        xscale="log", yscale="log", xlabel="gap, ms", ylabel="share above",
        title=f"Simulated gaps between tokens, {label}",
    )  # fmt: skip
    _plain_ticks(axes.xaxis)
    axes.legend(fontsize=7, loc="lower left")


def _plain_ticks(axis: Any) -> None:
    """Numbers such as 200 rather than powers of ten on a logarithmic axis of little range."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(FuncFormatter(lambda *_: ""))
