"""The SLO scale of a deployment by the event simulator."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from fluidserve.eventsim import estimate, simulate
from fluidserve.problem import Problem
from fluidserve.results import ScaleResult
from fluidserve.specs.scale import least_scale
from fluidserve.verify.crosscheck import stretch


def with_simulated_scale(
    problem: Problem,
    row: ScaleResult,
    *,
    requests: int = 4000,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
) -> ScaleResult:
    """The row with the least factor that simulated requests need, and its Student's interval.

    No rate is searched: each run tells the factor by itself.

    Args:
      problem: the question.
      row: a deployment at a rate.
      requests: of each run.
      seeds: one run each; a recording is served once.

    Raises:
      InputError: what the simulator raises.
    """
    system, workload = problem.system(row.deployment), stretch(problem.workload, requests)
    recorded = bool(len(np.asarray(workload.arrivals)))
    gaps = problem.slo.itl is not None
    found = []
    for seed in seeds[:1] if recorded else seeds:
        records = simulate(
            system, workload, row.rate, requests=requests, seed=seed, record_gaps=gaps
        ).window()
        found.append(
            least_scale(
                problem.slo,
                ttft=records.ttft,
                tpot=records.tpot,
                e2e=records.e2e,
                n_out=records.n_out,
                gaps=None if records.gaps is None else records.gaps.values,
            )
        )
    value = estimate(np.array(found))
    return dataclasses.replace(row, simulated=(value.value, value.low, value.high))
