"""The event simulator's word on a case: goodput to a given error, and latencies below it."""

import time

import numpy as np

from benchmarks.accuracy.cases import Case, problem_of
from fluidserve.eventsim import attainment, goodput, simulate
from fluidserve.eventsim.records import Records

SHARES = (0.5, 0.8)
"""Loads, as shares of the simulated goodput, at which latencies are compared."""
LEVELS = (50, 90, 99)
_FEWEST_SEEDS, _MOST_SEEDS = 4, 24
_LATENCY_RUNS = 2
_CENTRED = 0.02
_FARTHEST = 0.5
_TRIES = 6
_LONGEST = 20.0
"""CPU time after which a goodput is taken with the error that it has, s."""


def judge(case: Case, guess: float, requests: int, precision: float) -> dict:
    """Simulates a case.

    A rough root comes first. Around it attainment is taken as a straight line in the rate: its
    slope from a few runs on both sides, its height from independent runs in the middle, as many as
    the standard error asks for.

    Args:
      case: what to simulate.
      guess: where to start, 1/s.
      requests: of each run.
      precision: relative standard error wanted of the goodput.

    Returns:
      ``goodput`` and ``se``, 1/s; ``runs``; ``points``, one for each of `SHARES`, with ``rate``,
      ``attainment`` and the ``LEVELS`` of TTFT and TPOT, s.
    """
    began = time.process_time()
    problem = problem_of(case)
    system, slo = problem.system(case.deployment), problem.slo
    target, runs = float(slo.attainment), 0

    def run(rate: float, seed: int) -> Records:
        records = simulate(system, problem.workload, rate, requests=requests, seed=seed)
        return records.window()

    def share(rate: float, seed: int) -> float:
        return attainment(run(rate, seed), slo)

    rough = goodput(
        system,
        problem.workload,
        slo,
        guess=guess,
        requests=requests,
        seeds=[0],
        tolerance=0.02,
    )
    root, error, settled = rough.value, np.inf, False
    for _ in range(_TRIES):
        if root == 0.0:
            break
        centre, heights = root, []
        pairs = [(share(centre * 0.98, s), share(centre * 1.02, s)) for s in range(2)]
        slope = max(float(np.mean([low - high for low, high in pairs])) / 0.04, 1e-3)
        for seed in range(_MOST_SEEDS):
            heights.append(share(centre, seed))
            if seed:
                error = float(np.std(heights, ddof=1) / len(heights) ** 0.5 / slope)
            enough = error <= precision or time.process_time() - began > _LONGEST
            if seed + 1 >= _FEWEST_SEEDS and enough:
                break
        moved = (float(np.mean(heights)) - target) / slope
        # a flat curve says little about where it comes down: no step is trusted far
        root = centre * (1.0 + float(np.clip(moved, -_FARTHEST, _FARTHEST)))
        runs += 4 + len(heights)
        settled = abs(root / centre - 1.0) <= _CENTRED
        if settled or time.process_time() - began > _LONGEST:
            break
    # what was taken for a straight line was too long a piece
    error = error if settled else np.inf
    points = []
    for load in SHARES if root > 0.0 else ():
        parts = [run(load * root, 1000 + s) for s in range(_LATENCY_RUNS)]
        points.append(
            _point(load * root, parts, float(np.mean([attainment(p, slo) for p in parts])))
        )
        runs += _LATENCY_RUNS
    se = error * root if root > 0.0 else 0.0
    return {"goodput": root, "se": se, "runs": runs, "points": points}


def _point(rate: float, parts: list[Records], share: float) -> dict:
    """Latencies of several runs at one rate."""
    ttft = np.concatenate([p.ttft for p in parts])
    tpot = np.concatenate([p.tpot[p.n_out > 1] for p in parts])
    times = {
        "ttft": {f"p{q}": float(np.percentile(ttft, q)) for q in LEVELS},
        "tpot": {f"p{q}": float(np.percentile(tpot, q)) for q in LEVELS},
    }
    return {"rate": rate, "attainment": share} | times
