"""The first requests into an empty system, served in many independent runs.

Published goodputs are often those of a few hundred requests sent to an idle system. Early requests
meet nobody, the last ones decode while nothing comes behind them, and above capacity the backlog
has no time to grow: a short run reports more than the system sustains.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from fluidserve.errors import InputError
from fluidserve.eventsim.arrivals import draw_requests
from fluidserve.eventsim.goodput import GoodputEstimate, bracket, idle_probe, narrow
from fluidserve.eventsim.measure import (
    Summary,
    estimate,
    margins,
    meets,
    quantiles,
    summarise_gaps,
)
from fluidserve.eventsim.records import Records, Utilisation
from fluidserve.eventsim.runs import run
from fluidserve.specs.slo import Slo, limits_of
from fluidserve.specs.workload import Workload
from fluidserve.timing.instance import AggregatedSystem, System

FEWEST_RUNS, MOST_RUNS = 20, 400
_NUDGE = 0.03


def runs_for(horizon: int, requests: int = 20_000) -> int:
    """Runs that serve about `requests` requests together, within `FEWEST_RUNS` and `MOST_RUNS`."""
    return min(max(round(requests / horizon), FEWEST_RUNS), MOST_RUNS)


def simulate_first(
    system: System | AggregatedSystem,
    workload: Workload,
    rate: float | int,
    *,
    horizon: int,
    runs: int,
    seed: int = 0,
    record_gaps: bool = False,
) -> list[Records]:
    """Serves `horizon` requests from an empty system, `runs` times.

    Requests are drawn independently, not stratified: that the load of a short run differs from run
    to run is part of what a short run measures.

    Args:
      system: the deployment.
      workload: lengths and the pattern of arrivals; recorded arrivals are the same in every run.
      rate: mean arrival rate, 1/s.
      horizon: requests of a run.
      runs: how many, with the seeds ``seed``, ``seed + 1`` and so on.
      seed: the first seed.
      record_gaps: also keep every time between two tokens.

    Raises:
      InputError: a rate that is not positive and finite, or what `run` raises.
    """
    if not 0 < rate < math.inf:
        raise InputError(f"rate = {rate} must be positive and finite (1/s)")
    drawn = _draw(workload, horizon, range(seed, seed + runs))
    return [
        run(system, unit / rate, n_in, n_out, seed=s, record_gaps=record_gaps)
        for s, unit, n_in, n_out in drawn
    ]


def summarise_first(runs: Sequence[Records], slo: Slo) -> Summary:
    """Metrics over all requests of all runs, none left out.

    The interval of the attainment is Student's over the runs, clipped to 0 and 1.

    Args:
      runs: of equal length.
      slo: the limits.
    """
    share = estimate(np.array([meets(r, slo).mean() for r in runs]))
    shares = {limit.metric: limit.share for limit in limits_of(slo)}
    spans = np.array([r.arrival[-1] - r.arrival[0] for r in runs])
    done = [np.count_nonzero(r.last_token <= r.arrival[-1]) for r in runs]
    return Summary(
        ttft=quantiles(np.concatenate([r.ttft for r in runs]), shares.get("ttft")),
        tpot=quantiles(np.concatenate([r.tpot[r.n_out > 1] for r in runs]), shares.get("tpot")),
        e2e=quantiles(np.concatenate([r.e2e for r in runs]), shares.get("e2e")),
        attainment=dataclasses.replace(share, low=max(share.low, 0.0), high=min(share.high, 1.0)),
        throughput=float(np.sum(done) / max(float(np.sum(spans)), 1e-9)),
        requests=sum(len(r) for r in runs),
        gaps=summarise_gaps(runs, shares.get("itl")),
    )


def mean_utilisation(runs: Sequence[Records]) -> Utilisation:
    """Averages of the runs' averages."""
    parts = [r.utilisation for r in runs]
    names = [f.name for f in dataclasses.fields(Utilisation)]
    return Utilisation(**{n: float(np.mean([getattr(p, n) for p in parts])) for n in names})


def mean_phases(runs: Sequence[Records]) -> dict[str, float]:
    """Mean time in each phase over all requests of all runs, as `Records.phases` has it, s."""
    parts = [r.phases() for r in runs]
    return {name: float(np.mean([part[name] for part in parts])) for name in parts[0]}


def goodput_first(
    system: System | AggregatedSystem,
    workload: Workload,
    slo: Slo,
    *,
    guess: float | int,
    horizon: int,
    runs: int,
    seed: int = 0,
    tolerance: float = 0.005,
) -> GoodputEstimate:
    """Rate at which the mean shares over the runs, all requests of them, are at their targets.

    All rates see the same requests, only closer together. The interval comes from the spread over
    the runs of the share that binds and from its slope in the rate.

    Args:
      system: the deployment.
      workload: lengths and the pattern of arrivals.
      slo: limits and the share that must meet them.
      guess: where to start, 1/s.
      horizon: requests of a run.
      runs: how many.
      seed: of the first run.
      tolerance: relative width of the last bracket.

    Raises:
      InputError: the target is met at any rate, because so few requests cannot build a backlog.
    """
    guess = float(guess) if 0 < guess < math.inf else 1.0
    idle = idle_probe(system, workload, slo)
    if idle[1] < 0:
        return GoodputEstimate(value=0.0, low=0.0, high=0.0, se=0.0, probes=1)
    drawn = _draw(workload, horizon, range(seed, seed + runs))
    probes = 1

    def spare(rate: float) -> np.ndarray:
        nonlocal probes
        probes += len(drawn)
        served = (
            run(system, unit / rate, n_in, n_out, seed=s, record_gaps=slo.itl is not None)
            for s, unit, n_in, n_out in drawn
        )
        return np.array([margins(records, slo) for records in served])

    def margin(rate: float) -> tuple[float, float]:
        return rate, float(spare(rate).mean(0).min())

    low, high = bracket(margin, guess, 1.1, idle)
    root = narrow(margin, low, high, tolerance)
    slower, faster = spare(root * (1.0 - _NUDGE)), spare(root * (1.0 + _NUDGE))
    binds = int(np.argmin((slower + faster).mean(0)))
    slower, faster = slower[:, binds], faster[:, binds]
    slope = max(float(np.mean(slower - faster)), 1e-9) / (2.0 * _NUDGE * root)
    half = estimate(0.5 * (slower + faster))
    width = (half.high - half.low) / 2.0 / slope
    return GoodputEstimate(
        value=root,
        low=max(root - width, 0.0),
        high=root + width,
        se=half.se / slope,
        probes=probes,
    )


def _draw(
    workload: Workload, horizon: int, seeds: Sequence[int]
) -> list[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """Seed and requests of each run; of a recording, which has no chance in it, one is enough."""
    if len(np.asarray(workload.arrivals)):
        seeds = seeds[:1]
    return [(s, *draw_requests(workload, horizon, seed=s, stratify=False)) for s in seeds]
