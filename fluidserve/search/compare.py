"""One question about several accelerators: the plan of each, and all of them in one order."""

import dataclasses
import time
from collections.abc import Sequence

import numpy as np

from fluidserve.errors import NoFeasibleDeployment
from fluidserve.problem import Problem
from fluidserve.results import DeploymentResult, PlanResult
from fluidserve.search.grid import Grid, same_program
from fluidserve.search.plan import answer_kinds, grids_of, least_goodput, rank, with_ties
from fluidserve.specs.deployment import TOKEN_BUDGETS, Kind


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The plans of several accelerators.

    Attributes:
      plans: by name, best first.
      failures: why the others answer nothing, by name.
      seconds: time that each took, by name.
    """

    plans: dict[str, PlanResult]
    failures: dict[str, NoFeasibleDeployment]
    seconds: dict[str, float]

    @property
    def candidates(self) -> int:
        """Deployments that were scored."""
        every = [*self.plans.values(), *self.failures.values()]
        return sum(found.candidates for found in every)

    def deployments(self, top: int) -> list[DeploymentResult]:
        """The best `top` rows of all plans in one order, with their ties."""
        rows = [row for found in self.plans.values() for row in found.deployments]
        found = next(iter(self.plans.values()))
        least = least_goodput(found.rate, fewest=found.fewest)
        return with_ties(_ranked(rows, least)[:top], least)


def compare(
    problems: Sequence[Problem],
    *,
    budget: int,
    rate: float | None = None,
    fewest: bool = False,
    top: int = 10,
    kinds: Sequence[Kind] | None = None,
    token_budgets: tuple[int, ...] = TOKEN_BUDGETS,
) -> Comparison:
    """Plans each of several problems that differ in their accelerator.

    They are ordered by their best deployments, under the rule of `fluidserve.search.plan.plan`:
    by goodput within the budget, or by fewest GPUs that serve the rate. Their grids are padded to
    one size, so that one compiled program scores all.

    Raises:
      InputError: as in a plan.
      NoFeasibleDeployment: none of them answers the question.
    """
    least = least_goodput(rate, fewest=fewest)
    grids = [grids_of(problem, budget, kinds, token_budgets, least) for problem in problems]
    pools = [grid for found in grids for grid in found.values() if isinstance(grid, Grid)]
    for found, grid in zip(grids, same_program(pools), strict=False):
        found["disaggregated"] = grid
    plans: dict[str, PlanResult] = {}
    failures: dict[str, NoFeasibleDeployment] = {}
    seconds: dict[str, float] = {}
    for problem, grid in zip(problems, grids, strict=True):
        began = time.perf_counter()
        try:
            plans[problem.gpu.name] = answer_kinds(
                problem, grid, budget=budget, rate=rate, fewest=fewest, top=top
            )
        except NoFeasibleDeployment as error:
            failures[problem.gpu.name] = error
        seconds[problem.gpu.name] = time.perf_counter() - began
    if not plans:
        message = f"none of {', '.join(failures)} answers the question"
        raise NoFeasibleDeployment.of_all(failures, message)
    best = {id(found.deployments[0]): name for name, found in plans.items()}
    ordered = _ranked([found.deployments[0] for found in plans.values()], least)
    names = [best[id(row)] for row in ordered]
    return Comparison(
        plans={name: plans[name] for name in names},
        failures=failures,
        seconds=seconds,
    )


def _ranked(rows: list[DeploymentResult], least: float | None) -> list[DeploymentResult]:
    goodput = np.array([row.goodput for row in rows])
    return [rows[i] for i in rank(goodput, np.array([row.gpus for row in rows]), least)]
