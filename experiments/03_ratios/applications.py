"""Goodput per GPU of the three kinds on three applications, and of what DistServe ran."""

import csv
import dataclasses
import itertools
from pathlib import Path

from experiments.lecture import (
    A100,
    chat,
    code,
    markdown,
    plus_minus,
    save_picture,
    simulated,
    summaries,
)
from fluidserve.eventsim import GoodputEstimate
from fluidserve.problem import Problem
from fluidserve.report.plots.figure import new_figure
from fluidserve.report.plots.panels import BLUE, GREEN, ORANGE
from fluidserve.results import DeploymentResult
from fluidserve.search.plan import grid_for, plan
from fluidserve.search.score import question_of, score_grid
from fluidserve.specs.deployment import Kind, parse_label

GPUS = 16
TOKEN_BUDGETS = (512, 1024, 2048)
LONG = 20_000
"""Requests of a run with all instances: large batches take some thousand to gather."""
DEGREES = (1, 2, 4, 8)
"""Of tensor parallelism, and stages, of a prefill instance by itself."""
MANY = 8
KINDS: tuple[Kind, ...] = ("disaggregated", "chunked", "colocated")
COLOURS = (BLUE, GREEN, ORANGE)


@dataclasses.dataclass(frozen=True)
class Application:
    """One of the lecture's applications.

    Attributes:
      name: of the table.
      problem: the question.
      measured: its name among DistServe's measurements.
      paper: DistServe's placement.
      vllm: the colocated one it was compared with.
    """

    name: str
    problem: Problem
    measured: str
    paper: str
    vllm: str


LARGE = ("1P1D tp4/tp2pp2", "1C tp4")
APPLICATIONS = (
    Application("chatbot, OPT-13B", chat(), "OPT-13B ShareGPT", "1P1D tp2/tp1", "1C tp1"),
    Application("code completion, OPT-66B", code(), "OPT-66B HumanEval", *LARGE),
    Application("summarization, OPT-66B", summaries(), "OPT-66B LongBench", *LARGE),
)


@dataclasses.dataclass(frozen=True)
class Found:
    """The best of each kind within `GPUS`, and what DistServe compared.

    Attributes:
      application: which.
      best: by kind, from the plan.
      events: goodput of those by simulation, 1/s.
      paper: per GPU, DistServe's placement by simulation, 1/s.
      vllm: per GPU, the colocated one, 1/s.
      pieces: per GPU, one chunked instance of that shape with its best token budget, 1/s.
      prefill: tp and pp of the instance with most goodput per GPU where prefill is alone.
    """

    application: Application
    best: dict[Kind, DeploymentResult]
    events: dict[Kind, GoodputEstimate]
    paper: float
    vllm: float
    pieces: float
    prefill: tuple[int, int]

    def per_gpu(self, kind: Kind) -> float:
        """Simulated goodput per GPU, 1/s; 0 where the kind serves nothing."""
        return self.events[kind].value / self.best[kind].gpus if kind in self.best else 0.0

    @property
    def gain(self) -> float:
        """Of disaggregated over the best of the others, per GPU."""
        return self.per_gpu("disaggregated") / max(map(self.per_gpu, ("chunked", "colocated")))

    @property
    def over_vllm(self) -> float:
        """Of DistServe's placement over the colocated one, per GPU."""
        return self.paper / self.vllm if self.vllm else float("inf")


def search(application: Application) -> Found:
    """Plans and simulates."""
    problem = application.problem
    best = plan(problem, budget=GPUS, token_budgets=TOKEN_BUDGETS).best_of_kind
    events: dict[Kind, GoodputEstimate] = {
        kind: simulated(problem, row.deployment.label, row.goodput, requests=LONG, seeds=3)
        for kind, row in best.items()
    }
    guess = best["disaggregated"].goodput_per_gpu

    def single(label: str) -> float:
        gpus = parse_label(label, gpu=A100.name).gpus
        found = simulated(problem, label, guess * gpus, requests=3000, seeds=3)
        return found.value / gpus

    pieces = (application.vllm.replace("C", "S") + f" b{budget}" for budget in TOKEN_BUDGETS)
    return Found(
        application, best, events, single(application.paper), single(application.vllm),
        max(map(single, pieces)), prefill_alone(problem),
    )  # fmt: skip


def prefill_alone(problem: Problem) -> tuple[int, int]:
    """The tp and pp of one prefill instance with most goodput per GPU, by the formulas.

    Decode is kept out of the way: the limit is on TTFT alone, and many instances decode.
    """
    first = dataclasses.replace(problem, slo=dataclasses.replace(problem.slo, tpot=float("inf")))
    question, found = question_of(first), {}
    for tp, pp in itertools.product(DEGREES, DEGREES):
        label = f"1P{MANY}D tp{tp}pp{pp}/tp8"
        grid = grid_for(first, parse_label(label, gpu=A100.name))
        if len(grid):
            found[tp, pp] = float(score_grid(grid, question).goodput[0]) / (tp * pp)
    return max(found, key=found.__getitem__)


def application_table(found: list[Found]) -> str:
    """The best of each kind."""
    lines = []
    for one in found:
        for kind in KINDS:
            if kind not in one.best:
                lines.append([one.application.name, kind, "none", "0", "0", ""])
                continue
            row = one.best[kind]
            lines.append(
                [
                    one.application.name,
                    kind,
                    f"`{row.deployment.label}`",
                    f"{row.goodput_per_gpu:.3g}",
                    plus_minus(one.events[kind], row.gpus),
                    f"{one.per_gpu(kind) / one.per_gpu('disaggregated'):.2f}",
                ]
            )
    header = ["application", "kind", "best", "planned, per GPU", "simulated", "over disaggregated"]
    return markdown(header, lines)


def paper_table(found: list[Found], folder: Path) -> str:
    """DistServe's placements against the colocated ones they were compared with."""
    with (folder / "data" / "simulators" / "distserve_paper_tables.csv").open() as file:
        rows = [r for r in csv.DictReader(file) if r["table"] == "goodput90_per_gpu"]
    measured = {r["field1"]: [float(x) for x in r["value"].split("/")] for r in rows}
    lines = []
    for one in found:
        application = one.application
        theirs = measured[application.measured]
        lines.append(
            [
                application.name,
                f"`{application.paper}` over `{application.vllm}`",
                f"{theirs[0]:.2f} / {theirs[1]:.2f} = {theirs[0] / theirs[1]:.1f}",
                f"{one.paper:.2f} / {one.vllm:.2f} = {one.over_vllm:.1f}",
                f"{one.gain:.1f}",
            ]
        )
    header = ["application", "placements", "measured, per GPU", "ours", "best over best"]
    return markdown(header, lines)


def single_table(found: list[Found]) -> str:
    """The best disaggregated deployment against one instance of a given shape."""
    lines = []
    for one in found:
        apart, (tp, pp) = one.per_gpu("disaggregated"), one.prefill
        lines.append(
            [
                one.application.name,
                f"{apart:.3g}",
                f"{one.vllm:.3g} (`{one.application.vllm}`)",
                f"{one.pieces:.3g}",
                f"{apart / one.vllm:.2f}",
                f"{apart / one.pieces:.2f}",
                f"tp{tp} pp{pp}",
            ]
        )
    header = ["application", "disaggregated, best", "one colocated", "one chunked, best budget"]
    header += ["over colocated", "over chunked", "prefill alone picks"]
    return markdown(header, lines)


def rows_of(found: list[Found]) -> dict[str, float | str]:
    """Our numbers for the lecture's rows on applications."""
    wins = []
    for one in found:
        apart, (tp, pp) = one.per_gpu("disaggregated"), one.prefill
        singles = f"{apart / one.vllm:.2f} and {apart / one.pieces:.2f}"
        wins.append(
            f"{one.application.name}: {singles} times one colocated and one chunked instance, "
            f"{one.gain:.2f} times the best of {GPUS} GPUs; prefill alone picks tp{tp} pp{pp}"
        )
    gains = ", ".join(f"{one.application.name} {one.over_vllm:.1f}x" for one in found)
    return {"disagg-wins": "; ".join(wins), "distserve-gains": gains}


def draw_applications(path: Path, found: list[Found]) -> None:
    """Bars of goodput per GPU."""
    figure, axes = new_figure(len(found), rows=1)
    for ax, one in zip(axes[0], found, strict=True):
        for i, (kind, colour) in enumerate(zip(KINDS, COLOURS, strict=True)):
            value = one.per_gpu(kind)
            ax.bar(i, value, color=colour, width=0.6)
            if kind in one.best:
                event, gpus = one.events[kind], one.best[kind].gpus
                ends = [[(event.value - event.low) / gpus], [(event.high - event.value) / gpus]]
                ax.errorbar(i, value, yerr=ends, color="0.2", capsize=3)
        labels = [
            f"{k}\n{one.best[k].deployment.label}" if k in one.best else f"{k}\nnone" for k in KINDS
        ]
        ax.set_xticks(range(len(KINDS)), labels, fontsize=8)
        ax.set(ylabel="goodput per GPU, requests/s", title=one.application.name)
    save_picture(figure, path)
