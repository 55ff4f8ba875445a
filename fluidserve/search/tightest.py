"""Which deployments of each kind can give the tightest promise at a rate per GPU."""

from collections.abc import Mapping

import numpy as np

from fluidserve.errors import InputError, NoFeasibleDeployment
from fluidserve.problem import Problem
from fluidserve.results import ScaleResult
from fluidserve.search.aggregated import Candidates
from fluidserve.search.capacity import capacities
from fluidserve.search.infeasible import no_kind_fits
from fluidserve.search.score import question_of
from fluidserve.search.slo_scale import LOOSEST, slo_scales
from fluidserve.specs.deployment import Kind


def tightest(
    problem: Problem,
    grids: Mapping[Kind, Candidates],
    rate_per_gpu: float,
    *,
    budget: int,
    top: int = 3,
) -> dict[Kind, list[ScaleResult]]:
    """The deployments of each kind with the least factors on all limits, by the formulas.

    Every candidate gets `rate_per_gpu` for each of its GPUs, so that those with few compare with
    those with many.

    Args:
      problem: the question; of its promise the limits are scaled, the shares stay.
      grids: candidates by kind.
      rate_per_gpu: 1/s.
      budget: most GPUs of a deployment, for the message where nothing fits.
      top: deployments of each kind, tightest first; of two alike the one with fewer GPUs.

    Returns:
      the kinds that carry the rate.

    Raises:
      InputError: a rate that is not positive, a closed loop, or a horizon.
      NoFeasibleDeployment: nothing fits, or no candidate carries the rate.
    """
    if not rate_per_gpu > 0.0:
        raise InputError(f"rate per GPU = {rate_per_gpu} must be positive (1/s)")
    if not any(map(len, grids.values())):
        raise no_kind_fits(problem, grids, budget)
    found: dict[Kind, list[ScaleResult]] = {}
    for kind, grid in grids.items():
        rows = _first(problem, grid, rate_per_gpu, top) if len(grid) else []
        if rows:
            found[kind] = rows
    if not found:
        count = sum(map(len, grids.values()))
        raise NoFeasibleDeployment(
            f"no deployment carries {rate_per_gpu:g} requests/s per GPU, however loose the limits "
            f"(up to {LOOSEST:g} times)",
            reasons={"the rate is above capacity": count},
            nearest=_most_per_gpu(problem, grids),
            candidates=count,
        )
    return found


def _most_per_gpu(problem: Problem, grids: Mapping[Kind, Candidates]) -> str:
    """The candidate that carries most for each GPU, in words."""
    found: list[tuple[float, str]] = []
    for grid in grids.values():
        if len(grid):
            per_gpu = capacities(grid, question_of(problem))[0] / grid.gpus
            best = int(np.argmax(per_gpu))
            found.append((float(per_gpu[best]), grid.deployment(best).label))
    most, label = max(found)
    return f"{label} carries {most:.3g} requests/s per GPU, whatever the latencies"


def _first(problem: Problem, grid: Candidates, rate_per_gpu: float, top: int) -> list[ScaleResult]:
    """The tightest candidates of one kind."""
    rates = rate_per_gpu * grid.gpus
    factors = slo_scales(grid, question_of(problem), rates)
    order = np.lexsort((grid.gpus, np.round(factors, 4)))
    return [
        ScaleResult(
            deployment=grid.deployment(int(i)),
            kind=grid.deployment(int(i)).kind,
            rate=float(rates[i]),
            formulas=float(factors[i]),
        )
        for i in order[:top]
        if np.isfinite(factors[i])
    ]
