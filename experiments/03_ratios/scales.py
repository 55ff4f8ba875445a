"""How much tighter limits each kind can keep at a rate per GPU."""

import dataclasses
from pathlib import Path

from experiments.lecture import A100, chat, markdown, save_picture
from fluidserve.errors import NoFeasibleDeployment
from fluidserve.report.plots.figure import new_figure
from fluidserve.report.plots.panels import BLUE, GREEN, GREY, ORANGE, RED
from fluidserve.results import ScaleResult
from fluidserve.search.aggregated import Candidates
from fluidserve.search.plan import grid_for, grids_of
from fluidserve.search.tightest import tightest
from fluidserve.specs.deployment import Kind, parse_label
from fluidserve.verify.scale import with_simulated_scale

RATE = 1.0
RATES = (0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
NAMED = {"1P1D tp2/tp1": BLUE, "1S tp1 b1024": GREEN, "1C tp1": ORANGE}
"""The lecture's deployments, and a chunked one."""
GPUS = 16


@dataclasses.dataclass(frozen=True)
class Scales:
    """Least factors on both limits.

    Attributes:
      named: of the named deployments at `RATE` per GPU, simulated too.
      best: of the tightest of each kind within `GPUS`, the same.
      curves: of the named ones by the formulas, at `RATES` per GPU that they carry.
    """

    named: dict[str, ScaleResult]
    best: list[ScaleResult]
    curves: dict[str, list[tuple[float, float]]]


def scales() -> Scales:
    """Searches and simulates."""
    problem = chat()
    named, curves = {}, {}
    for label in NAMED:
        deployment = parse_label(label, gpu=A100.name)
        grid: dict[Kind, Candidates] = {deployment.kind: grid_for(problem, deployment)}
        points = []
        for rate in RATES:
            try:
                (rows,) = tightest(problem, grid, rate, budget=GPUS).values()
            except NoFeasibleDeployment:
                break
            points.append((rate, rows[0].formulas))
            if rate == RATE:
                named[label] = with_simulated_scale(problem, rows[0])
        curves[label] = points
    grids = grids_of(problem, GPUS, None, (1024, 2048))
    every = tightest(problem, grids, RATE, budget=GPUS, top=2)
    best = [
        min((with_simulated_scale(problem, row) for row in rows), key=lambda row: row.scale)
        for rows in every.values()
    ]
    return Scales(named, best, curves)


def scale_table(found: Scales) -> str:
    """Factors at one rate per GPU."""
    lines, slo = [], chat().slo
    for how, rows in (("named", found.named.values()), (f"best of {GPUS} GPUs", found.best)):
        for row in rows:
            assert row.simulated is not None
            value, low, high = row.simulated
            cells = [f"{row.formulas:.2f}", f"{value:.2f} ±{(high - low) / 2:.1g}"]
            slo = chat().slo
            limits = (
                f"{1e3 * value * float(slo.ttft):.0f} ms, {1e3 * value * float(slo.tpot):.0f} ms"
            )
            lines.append([row.kind, f"`{row.deployment.label}`", how, *cells, limits])
    header = ["kind", "deployment", "", "formulas", "simulated", "TTFT and TPOT it keeps"]
    return markdown(header, lines)


def rows_of(found: Scales) -> dict[str, float | str]:
    """Our numbers for the lecture's rows on the SLO scale."""
    return {
        "slo-scale-coloc": found.named["1C tp1"].scale,
        "slo-scale-disagg": found.named["1P1D tp2/tp1"].scale,
    }


def draw_scales(path: Path, found: Scales) -> None:
    """The factor over the rate per GPU."""
    figure, axes = new_figure(1, rows=1)
    ax = axes[0][0]
    for label, colour in NAMED.items():
        ax.plot(*zip(*found.curves[label], strict=True), color=colour, label=label)
        event = found.named[label].simulated
        assert event is not None
        ends = [[event[0] - event[1]], [event[2] - event[0]]]
        ax.errorbar(RATE, event[0], yerr=ends, fmt="o", ms=4, capsize=2, color=colour)
    ax.axhline(1.0, color=RED, ls="--", lw=1, label="the limits as they are")
    ax.axvline(RATE, color=GREY, ls=":", lw=1)
    ax.set(
        xlabel="requests/s per GPU",
        ylabel="least factor on both limits",
        title="OPT-13B chat (points: simulated)",
        ylim=(0, 1.5),
        xlim=(0, RATES[-1]),
    )
    ax.legend(fontsize=8, loc="upper left")
    save_picture(figure, path)
