"""A deployment served by the simulator, in the way that a problem asks for."""

import dataclasses

from fluidserve.eventsim import (
    Summary,
    Utilisation,
    closed_window,
    mean_phases,
    mean_utilisation,
    runs_for,
    simulate,
    simulate_closed,
    simulate_first,
    summarise,
    summarise_first,
)
from fluidserve.problem import Problem
from fluidserve.results import Phases
from fluidserve.specs.deployment import Deployment
from fluidserve.verify.crosscheck import stretch

MOST_GAPS = 50_000_000
"""Gaps between tokens that a run keeps; of a longer one there is no ITL unless it has a limit."""


@dataclasses.dataclass(frozen=True)
class Served:
    """What a simulation found.

    Attributes:
      summary: latencies, attainment, throughput.
      phases: where the time of a request went.
      utilisation: how busy everything was.
    """

    summary: Summary
    phases: Phases
    utilisation: Utilisation


def serve(
    problem: Problem, deployment: Deployment, rate: float, *, requests: int, seed: int
) -> Served:
    """One run in steady state or in a closed loop, or runs of the first requests of a horizon.

    Args:
      problem: the question.
      deployment: what serves.
      rate: mean arrival rate, 1/s; in a closed loop the users set the pace.
      requests: of the run, or of all runs together.
      seed: of the run, or of the first one.

    Raises:
      InputError: what the simulator raises.
    """
    system, users = problem.system(deployment), problem.workload.concurrency
    gaps = problem.slo.itl is not None or requests * problem.mean_lengths[1] <= MOST_GAPS
    if users is not None:
        window = closed_window(users, requests)
        records = simulate_closed(
            system, problem.workload, users, requests=requests, seed=seed, record_gaps=gaps
        )
        return Served(
            summary=summarise(records, problem.slo, users=users, **window),
            phases=Phases(**records.window(**window).phases()),
            utilisation=records.utilisation,
        )
    if problem.horizon is None:
        workload = stretch(problem.workload, requests)
        records = simulate(system, workload, rate, requests=requests, seed=seed, record_gaps=gaps)
        return Served(
            summary=summarise(records, problem.slo),
            phases=Phases(**records.window().phases()),
            utilisation=records.utilisation,
        )
    runs = simulate_first(
        system,
        stretch(problem.workload, problem.horizon),
        rate,
        horizon=problem.horizon,
        runs=runs_for(problem.horizon, requests),
        seed=seed,
        record_gaps=gaps,
    )
    return Served(
        summary=summarise_first(runs, problem.slo),
        phases=Phases(**mean_phases(runs)),
        utilisation=mean_utilisation(runs),
    )
