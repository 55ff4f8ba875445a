"""How many GPUs a promise costs each kind of deployment."""

import dataclasses
import functools
from pathlib import Path

import numpy as np

from experiments.lecture import A100, figure_1, markdown, save_picture, simulated
from fluidserve.deploy.promise import scaled
from fluidserve.errors import NoFeasibleDeployment
from fluidserve.eventsim import simulate
from fluidserve.report.plots.figure import new_figure
from fluidserve.report.plots.panels import BLUE, GREEN, GREY, ORANGE
from fluidserve.search.plan import plan
from fluidserve.specs.deployment import Kind, parse_label

SCALES = (3.0, 2.0, 1.5, 1.0, 0.7, 0.5)
WANTED = 10.0
"""Requests/s that GPUs are counted for."""
GPUS = 8
"""Of the deployments that are compared."""
KINDS: tuple[Kind, ...] = ("colocated", "chunked", "disaggregated")
COLOURS = (ORANGE, GREEN, BLUE)
TOKEN_BUDGETS = (256, 512, 1024, 2048)


@dataclasses.dataclass(frozen=True)
class Fleet:
    """The best deployments of each kind within `GPUS` under limits scaled by `scale`.

    Attributes:
      scale: factor on both limits.
      gpus: for each `WANTED` requests/s, by kind; absent where nothing serves.
      labels: of the deployments, by kind.
      idle: what one colocated GPU finishes per second over its goodput; 0 where it has none.
    """

    scale: float
    gpus: dict[Kind, float]
    labels: dict[Kind, str]
    idle: float


def fleets() -> list[Fleet]:
    """GPUs for requests of DistServe's first figure."""
    found = []
    for scale in SCALES:
        problem = figure_1()
        problem = dataclasses.replace(problem, slo=scaled(problem.slo, scale))
        gpus, labels = {}, {}
        for kind in KINDS:
            try:
                best = plan(problem, budget=GPUS, kinds=(kind,), token_budgets=TOKEN_BUDGETS)
            except NoFeasibleDeployment:
                continue
            row = max(best.deployments, key=lambda row: row.goodput_per_gpu)
            gpus[kind] = WANTED / row.goodput_per_gpu
            labels[kind] = row.deployment.label
        own = simulated(problem, "1C tp1", 4.0, seeds=1).value
        found.append(Fleet(scale, gpus, labels, finished() / own if own else 0.0))
    return found


@functools.cache
def finished() -> float:
    """Requests that a colocated GPU finishes per second when far more come, 1/s."""
    problem = figure_1()
    system = problem.system(parse_label("1C tp1", gpu=A100.name))
    ends = np.sort(simulate(system, problem.workload, 40.0, requests=4000, seed=0).last_token)
    return 2000 / float(ends[3000] - ends[1000])


def fleet_table(found: list[Fleet]) -> str:
    """GPUs by kind."""
    slo = figure_1().slo
    lines = []
    for fleet in found:
        limits = f"{float(slo.ttft) * fleet.scale:.2g} s, {1e3 * float(slo.tpot) * fleet.scale:.0f}"
        cells = [
            f"{fleet.gpus[kind]:.2f} (`{fleet.labels[kind]}`)" if kind in fleet.gpus else "none"
            for kind in KINDS
        ]
        idle = f"{fleet.idle:.2f}" if fleet.idle else "no goodput"
        lines.append([f"{fleet.scale:g}", f"{limits} ms", *cells, idle])
    names = [f"GPUs, {kind}" for kind in KINDS]
    header = ["limits times", "TTFT, TPOT", *names, "finished over goodput, `1C tp1`"]
    return markdown(header, lines)


def draw_fleets(path: Path, found: list[Fleet]) -> None:
    """GPUs over how tight the limits are."""
    figure, axes = new_figure(1, rows=1)
    ax = axes[0][0]
    for kind, colour in zip(KINDS, COLOURS, strict=True):
        points = [(f.scale, f.gpus[kind]) for f in found if kind in f.gpus]
        ax.plot(*zip(*points, strict=True), "o-", ms=4, color=colour, label=kind)
    ax.axhline(WANTED / finished(), color=GREY, ls=":", label="colocated, without limits")
    ax.set_xscale("log")
    ax.set_xticks(SCALES, [f"{s:g}" for s in SCALES])
    ax.minorticks_off()
    ax.invert_xaxis()
    ax.set(
        xlabel="limits times (tighter to the right)",
        ylabel=f"GPUs for {WANTED:g} requests/s",
        title="What a promise costs: OPT-13B, 512/64",
    )
    ax.set_ylim(bottom=0)
    ax.legend(fontsize=8, loc="upper left")
    save_picture(figure, path)
