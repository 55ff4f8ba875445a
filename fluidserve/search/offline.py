"""Offline inference: the most tokens per second, whatever the latencies.

The formulas say when instances are full; they take prompts to be computed beside decode as evenly
as can be. A full engine alternates between long and short iterations instead, which costs up to a
quarter where large pieces of prompts meet full KV memory. With all requests there from the start
the event simulator needs a fraction of a second, so it has the last word on whatever could be best.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from fluidserve.eventsim.measure import estimate
from fluidserve.eventsim.offline import offline_throughput
from fluidserve.problem import Problem
from fluidserve.results import OfflineResult
from fluidserve.search.aggregated import AggregatedGrid, Candidates
from fluidserve.search.capacity import capacities
from fluidserve.search.infeasible import no_kind_fits
from fluidserve.search.plan import rank
from fluidserve.search.score import question_of
from fluidserve.specs.deployment import Deployment, Disaggregated, Kind
from fluidserve.status import Binding
from fluidserve.timing.instance import System

SEEDS = (0, 1, 2)
_REQUESTS, _MOST_REQUESTS = 4000, 40_000
_FILLS = 12.0
_OPTIMISM = 0.05
"""How far below the truth the formulas can be: what cannot win by more is not simulated."""
_MOST_SIMULATED = 48


def offline(
    problem: Problem, grids: Mapping[Kind, Candidates], *, budget: int, top: int = 10
) -> dict[Kind, list[OfflineResult]]:
    """The deployments of each kind that finish most requests per second, best first.

    Candidates are simulated in the order of the formulas until none that is left could beat the
    best one found, at most 48 of each kind. Instances that do both phases do not
    meet, so one instance of a shape and token budget stands for any number of them.

    Args:
      problem: the question; its promise is not looked at.
      grids: candidates by kind.
      budget: most GPUs of a deployment, for the message where nothing fits.
      top: deployments of each kind; all of them are simulated.

    Raises:
      NoFeasibleDeployment: nothing fits.
    """
    found: dict[Kind, list[OfflineResult]] = {}
    for kind, grid in grids.items():
        if len(grid):
            found[kind] = _first(problem, grid, top)
    if not found:
        raise no_kind_fits(problem, grids, budget)
    return found


def _first(problem: Problem, grid: Candidates, top: int) -> list[OfflineResult]:
    """The best candidates of one kind."""
    formulas, binding = capacities(grid, question_of(problem))
    together = isinstance(grid, AggregatedGrid)
    # what candidates share that only differ in their number of instances
    alike = grid.alike if together else np.arange(len(grid))
    seen: set[int] = set()
    rows: list[OfflineResult] = []
    best = 0.0
    for i in map(int, np.argsort(-formulas, kind="stable")):
        if int(alike[i]) in seen:
            continue  # fewer of the same instances
        beaten = formulas[i] < (1.0 - _OPTIMISM) * best
        if len(seen) >= _MOST_SIMULATED or (beaten and len(rows) >= top):
            break
        seen.add(int(alike[i]))
        deployment = grid.deployment(i)
        value = estimate(_simulated(problem, deployment))
        best = max(best, value.value)
        rows.append(
            OfflineResult(
                deployment=deployment,
                kind=deployment.kind,
                formulas=float(formulas[i]),
                rate=value.value,
                interval=(value.low, value.high),
                tokens=problem.mean_lengths,
                binding=Binding(int(binding[i])).label,
            )
        )
    order = rank(np.array([r.rate for r in rows]), np.array([r.gpus for r in rows]), None)
    return [rows[i] for i in order[:top]]


def _simulated(problem: Problem, deployment: Deployment) -> np.ndarray:
    """Requests finished per second in each run, (seeds,); of one instance where these are alike."""
    copies = 1
    if not isinstance(deployment, Disaggregated):
        copies = deployment.pool.replicas
        one = dataclasses.replace(deployment.pool, replicas=1)
        deployment = dataclasses.replace(deployment, pool=one)
    system = problem.system(deployment)
    decode = system.decode if isinstance(system, System) else system.instance
    decoding = list(deployment.pools.values())[-1].replicas
    held = float(decode.kv_capacity) / sum(problem.mean_lengths)
    slots = decoding * min(held, problem.engine.max_batch)
    requests = round(min(max(_FILLS * slots, _REQUESTS), _MOST_REQUESTS))
    runs = [
        offline_throughput(system, problem.workload, requests=requests, seed=seed) for seed in SEEDS
    ]
    return copies * np.array(runs)
