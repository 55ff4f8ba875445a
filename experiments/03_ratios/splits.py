"""How many of a fixed number of GPUs should prefill: no ratio suits all traffic."""

import dataclasses
from pathlib import Path

import numpy as np

from experiments.lecture import (
    chat,
    figure_1,
    markdown,
    plus_minus,
    question,
    save_picture,
    simulated,
)
from fluidserve.deploy.ratio import best_split
from fluidserve.eventsim import GoodputEstimate
from fluidserve.problem import Problem
from fluidserve.report.plots.figure import new_figure
from fluidserve.report.plots.panels import BLUE, GREEN, ORANGE
from fluidserve.search.plan import grid_for
from fluidserve.search.score import question_of, score_grid
from fluidserve.specs.applications import synthetic_workload
from fluidserve.specs.deployment import parse_label

SIX = 6
LARGE = 12
PROMPTS = (128, 256, 512, 1024, 2048, 4096)
OUTPUTS = (64, 200, 600)
COLOURS = (BLUE, GREEN, ORANGE)


@dataclasses.dataclass(frozen=True)
class Splits:
    """Goodput of every split of `SIX` GPUs, one instance each.

    Attributes:
      name: of the traffic.
      formulas: by the number of prefill GPUs, 1/s.
      events: the same by simulation.
    """

    name: str
    formulas: dict[int, float]
    events: dict[int, GoodputEstimate]

    @property
    def best(self) -> str:
        """The split that serves most by simulation."""
        n = max(self.events, key=lambda n: self.events[n].value)
        return f"{n}P{SIX - n}D"


def goodput(problem: Problem, label: str) -> float:
    """Goodput of a deployment by the formulas, 1/s."""
    grid = grid_for(problem, parse_label(label, gpu=problem.gpu.name))
    return float(score_grid(grid, question_of(problem)).goodput[0])


def six(name: str, problem: Problem) -> Splits:
    """Every split of six GPUs, by formulas and by simulation."""
    formulas, events = {}, {}
    for n in range(1, SIX):
        label = f"{n}P{SIX - n}D tp1/tp1"
        formulas[n] = goodput(problem, label)
        events[n] = simulated(problem, label, formulas[n], requests=3000, seeds=3)
    return Splits(name, formulas, events)


def both() -> list[Splits]:
    """The lecture's two questions."""
    return [six("512/64", figure_1()), six("chat", chat())]


def split_table(found: list[Splits]) -> str:
    """Goodput per GPU of every split."""
    lines = []
    for n in range(1, SIX):
        cells = [f"{n}P{SIX - n}D"]
        for splits in found:
            mark = " (best)" if splits.best.startswith(f"{n}P") else ""
            cells += [f"{splits.formulas[n] / SIX:.2f}", plus_minus(splits.events[n], SIX) + mark]
        lines.append(cells)
    header = [f"{s.name}, {by}" for s in found for by in ("formulas", "simulated")]
    return markdown(["split", *header], lines)


def best_of_twelve(n_in: int, n_out: int) -> int:
    """Prefill GPUs of the best split of `LARGE`, under limits that suit the lengths."""
    model = question("OPT-13B", synthetic_workload(n_in, n_out), 1.0, 1.0)
    alone = float(model.instance(1, 1).prefill_time(float(n_in)))
    problem = question("OPT-13B", synthetic_workload(n_in, n_out), 4.0 * alone, 0.05)
    found = [goodput(problem, f"{n}P{LARGE - n}D tp1/tp1") for n in range(1, LARGE)]
    return 1 + int(np.argmax(found))


def draw_splits(path: Path, found: list[Splits]) -> None:
    """Goodput over the split, and the best split over the lengths."""
    figure, axes = new_figure(2, rows=1)
    left, right = axes[0]
    for splits, colour in zip(found, COLOURS, strict=False):
        n = np.array(list(splits.formulas))
        left.plot(n, np.array(list(splits.formulas.values())) / SIX, color=colour)
        ends = np.array([(e.value - e.low, e.high - e.value) for e in splits.events.values()]).T
        values = np.array([e.value for e in splits.events.values()])
        left.errorbar(
            n, values / SIX, yerr=ends / SIX, fmt="o", ms=4, capsize=2, color=colour,
            label=f"{splits.name}: {splits.best}",
        )  # fmt: skip
    left.set_xticks(n, [f"{k}P{SIX - k}D" for k in n])
    left.set(ylabel="goodput per GPU, requests/s", title="Six GPUs (points: simulated)")
    left.set_ylim(bottom=0)
    left.legend(fontsize=8)
    for n_out, colour in zip(OUTPUTS, COLOURS, strict=True):
        best = [best_of_twelve(n_in, n_out) for n_in in PROMPTS]
        right.plot(PROMPTS, best, "o-", ms=4, color=colour, label=f"{n_out} output tokens")
    right.set_xscale("log")
    right.set_xticks(PROMPTS, [f"{p:,}" for p in PROMPTS])
    right.minorticks_off()
    right.set_yticks(range(0, LARGE + 1, 2))
    right.set(
        xlabel="prompt tokens",
        ylabel=f"prefill GPUs of {LARGE}",
        title="Best split (formulas)",
        ylim=(0, LARGE),
    )
    right.legend(fontsize=8, loc="upper left")
    save_picture(figure, path)


def exercise() -> dict[str, float | str]:
    """The lecture's exercise on single GPUs that sustain 6 and 15 requests/s."""
    n, k = best_split(6.0, 15.0, most=16)
    found = {split: min(6.0 * split[0], 15.0 * split[1]) / sum(split) for split in ((2, 1), (3, 1))}
    return {
        "xpyd-ex": f"{n}P{k}D, {min(6.0 * n, 15.0 * k) / (n + k):.2f}",
        "xpyd-ex-2p1d": found[2, 1],
        "xpyd-ex-3p1d": found[3, 1],
    }


def gain() -> dict[str, float | str]:
    """What two prefill GPUs and one decode GPU serve over three colocated ones."""
    problem = figure_1()
    apart = simulated(problem, "2P1D tp1/tp1", 24.0).value
    together = simulated(problem, "1C tp1", 4.7).value
    return {"2p1d-goodput": apart, "2p1d-per-gpu-gain": apart / 3 / together}
