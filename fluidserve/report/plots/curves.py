"""Curves of several deployments over the rate, with simulated points, as one picture."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidserve.report.plots.figure import new_figure, save_figure
from fluidserve.report.plots.panels import BLUE, GREEN, GREY, ORANGE, RED
from fluidserve.specs.slo import Slo, joint_limits
from fluidserve.verify.curves import LEVELS, Curve

_COLOURS = (BLUE, ORANGE, GREEN, RED, GREY)
_P90, _P99 = 1, 2


def plot_curves(path: str, curves: Sequence[Curve], slo: Slo) -> None:
    """Attainment, P90 of TTFT and of TPOT, and throughput over the arrival rate.

    With P99 of the gaps between tokens where the promise limits them.

    Raises:
      InputError: the file cannot be written.
    """
    figure, axes = new_figure(2 if slo.itl is None else 3)
    _attainment(axes[0][0], curves, slo)
    _latency(axes[0][1], curves, "ttft", float(slo.ttft))
    _latency(axes[1][1], curves, "tpot", float(slo.tpot))
    _throughput(axes[1][0], curves)
    if slo.itl is not None:
        _latency(axes[0][2], curves, "itl", float(slo.itl), level=_P99)
        axes[1][2].remove()
    for ax in figure.axes:
        ax.set_xlabel("arrival rate, requests/s")
        ax.set_xlim(left=0.0)
        ax.legend(fontsize=7)
    save_figure(figure, path)


def _lines(curves: Sequence[Curve]):
    return zip(curves, np.resize(np.array(_COLOURS), len(curves)), strict=True)


def _attainment(ax: Any, curves: Sequence[Curve], slo: Slo) -> None:
    for curve, colour in _lines(curves):
        label = f"{curve.row.kind}: {curve.row.deployment.label}"
        ax.plot(curve.rate, 100.0 * curve.attainment, color=colour, label=label)
        if curve.points:
            value = 100.0 * np.array([p.attainment for p in curve.points])
            ends = 100.0 * np.array([(p.low, p.high) for p in curve.points]).T
            ax.errorbar(
                [p.rate for p in curve.points],
                value,
                yerr=np.maximum(np.stack([value - ends[0], ends[1] - value]), 0.0),
                fmt="o",
                ms=4,
                capsize=2,
                color=colour,
            )
    if joint_limits(slo):
        ax.axhline(100.0 * float(slo.attainment), color=RED, ls="--", lw=1, label="target")
    ax.set(ylabel="requests within the limits, %", title="Attainment (points: simulated)")
    ax.set_ylim(0.0, 103.0)


def _latency(
    ax: Any, curves: Sequence[Curve], metric: str, limit: float, level: int = _P90
) -> None:
    name = f"{LEVELS[level].upper()} {metric.upper()}"
    for curve, colour in _lines(curves):
        times = 1e3 * getattr(curve, metric)[level]
        shown = np.where(np.isfinite(times), times, np.nan)
        ax.plot(curve.rate, shown, color=colour, label=curve.row.deployment.label)
        points = [(p.rate, 1e3 * x[level]) for p in curve.points if (x := getattr(p, metric))]
        ax.plot(*zip(*points, strict=True), "o", ms=4, color=colour) if points else None
    if np.isfinite(limit):
        ax.axhline(1e3 * limit, color=RED, ls="--", lw=1, label="limit")
        ax.set_ylim(0.0, 3e3 * limit)
    ax.set(ylabel=f"{name}, ms", title=name)


def _throughput(ax: Any, curves: Sequence[Curve]) -> None:
    """Requests finished: what arrives while the deployment is stable; simulated points."""
    for curve, colour in _lines(curves):
        stable = np.isfinite(curve.ttft[_P90]) & np.isfinite(curve.tpot[_P90])
        done = np.where(stable, curve.rate, np.nan)
        ax.plot(curve.rate, done, color=colour, label=curve.row.deployment.label)
        points = [(p.rate, p.throughput) for p in curve.points]
        ax.plot(*zip(*points, strict=True), "o", ms=4, color=colour) if points else None
        ax.axvline(curve.row.goodput, color=colour, ls=":", lw=1)
    ax.set(ylabel="requests finished/s", title="Throughput (dotted: goodput)")
    ax.set_ylim(bottom=0.0)
