"""Pictures as files: PNG or SVG, complete or not there at all."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fluidserve.errors import InputError
from fluidserve.eventsim.records import Records
from fluidserve.io.files import check_target, complete_file
from fluidserve.problem import Problem
from fluidserve.report.plots import panels, points
from fluidserve.results import DeploymentResult
from fluidserve.search.aggregated import Candidates
from fluidserve.specs.deployment import Pool
from fluidserve.verify.crosscheck import requests_for

SUFFIXES = (".png", ".svg")
BATCHES = (1, 16, 32, 128)
"""Decode batches of the panel on interference."""
_DPI = 130


def check_plot(path: str) -> None:
    """Refuses a file that could not be written, before anything is computed.

    Raises:
      InputError: not PNG or SVG, no such directory, or no permission.
    """
    if Path(path).suffix.lower() not in SUFFIXES:
        raise InputError(f"--plot {path}: the name must end in {' or '.join(SUFFIXES)}")
    check_target(path, "--plot")


def plot_plan(
    path: str, problem: Problem, grids: Iterable[Candidates], best: DeploymentResult
) -> None:
    """Trade-offs over the budget, and the best deployment: rate, time line, roofline.

    Raises:
      InputError: the file cannot be written.
    """
    figure, axes = new_figure(3)
    trade = points.tradeoff(problem, grids)
    panels.draw_tradeoff(axes[0][0], trade, "ttft", problem.slo)
    panels.draw_tradeoff(axes[1][0], trade, "tpot", problem.slo)
    _draw_deployment([axes[0][1], axes[1][1], axes[0][2], axes[1][2]], problem, best)
    save_figure(figure, path)


def plot_deployment(path: str, problem: Problem, row: DeploymentResult) -> None:
    """One deployment: over the rate, time line, roofline, gaps between tokens, interference.

    Raises:
      InputError: the file cannot be written.
    """
    figure, axes = new_figure(3)
    four = [axes[0][0], axes[1][0], axes[0][1], axes[1][1]]
    sample = _draw_deployment(four, problem, row)
    panels.draw_gaps(axes[0][2], sample, problem.slo, row.deployment.label)
    pool = list(row.deployment.pools.values())[-1]
    found = points.interference(problem, pool, BATCHES)
    panels.draw_interference(axes[1][2], found, pool)
    save_figure(figure, path)


def plot_interference(path: str, problem: Problem, pools: Sequence[Pool]) -> None:
    """Iterations with prompts inside, a panel for each kind of instance.

    Raises:
      InputError: the file cannot be written.
    """
    figure, axes = new_figure(len(pools), rows=1)
    for i, pool in enumerate(pools):
        found = points.interference(problem, pool, BATCHES)
        panels.draw_interference(axes[0][i], found, pool)
    save_figure(figure, path)


def _draw_deployment(axes: list[Any], problem: Problem, row: DeploymentResult) -> Records:
    """Draws four panels; returns the requests of the time line."""
    deployment, label = row.deployment, row.deployment.label
    reach = row.goodput if row.goodput > 0 else row.rate
    line = points.curve(problem, row, reach)
    requests = requests_for(problem, row)
    runs = points.simulated_curve(problem, deployment, reach, requests)
    panels.draw_attainment(axes[0], line, runs, problem.slo, reach, label)
    panels.draw_latency(axes[1], line, problem.slo, reach, label)
    sample = points.sample_run(problem, deployment, row.rate, requests)
    panels.draw_timeline(axes[2], sample, row.rate)
    passes = points.roofline_points(problem, deployment, row.batch)
    panels.draw_roofline(axes[3], problem.gpu, problem.model.compute_dtype, passes)
    return sample


def new_figure(columns: int, rows: int = 2) -> tuple[Any, Any]:
    """Rows of panels, without a window whatever the user's settings are."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * columns, 4.0 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def save_figure(figure: Any, path: str) -> None:
    """Writes a picture whole or not at all.

    Raises:
      InputError: the file cannot be written.
    """
    with complete_file(path, "--plot") as temporary:
        figure.savefig(temporary, dpi=_DPI, format=Path(path).suffix[1:].lower())
