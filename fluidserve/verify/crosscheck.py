"""The event simulator's word on a deployment that the formulas have judged.

Both take the same step times and the same traffic. The simulator has no queueing formula in it: it
serves request after request. What the comparison cannot see is an error in the step times.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from fluidserve.eventsim import (
    Summary,
    closed_window,
    estimate,
    goodput,
    goodput_first,
    runs_for,
    simulate,
    simulate_closed,
    simulate_first,
    summarise,
    summarise_first,
)
from fluidserve.eventsim.measure import excess
from fluidserve.problem import Problem
from fluidserve.results import DeploymentResult, Latency, Replayed, Simulated
from fluidserve.specs.slo import limits_of, request_limits
from fluidserve.specs.workload import JointLengths, Workload
from fluidserve.timing.instance import AggregatedSystem, System

FEWEST_REQUESTS = 1_500
MOST_REQUESTS = 20_000
MOST_FIRST = 12_000
"""Requests of all runs of a check over the first requests."""
AMBER = 0.05
"""Difference between formulas and simulation, as a share, beyond which a result is amber."""
RED = 0.15
"""The same for red."""
_EVENTS = 30_000
_TURNS = 15
_MOST_EVENTS = 1_000_000
_BUSY_WINDOW = 60.0
_LIMITS_PER_RUN = 50.0
_STAYS_PER_RUN = 10.0
_FULLEST = 0.9
_TOLERANCE = 0.02


def crosscheck(
    problem: Problem,
    result: DeploymentResult,
    *,
    requests: int | None = None,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
) -> Simulated:
    """Simulates a deployment: at the rate of its row, and for its goodput.

    In a closed loop no rate is searched: what counts as goodput is the throughput. Recorded
    arrivals are replayed once, from their start; there is no chance in them, and so no interval.
    Otherwise every seed gives an independent run, and the interval is Student's.

    Args:
      problem: the question.
      result: the row to check.
      requests: of each run; by default `requests_for`.
      seeds: one replication each.

    Raises:
      InputError: no seeds, too few requests, or a request that no instance has room for.
    """
    if problem.workload.concurrency is not None:
        return _users(problem, result, problem.workload.concurrency, requests, seeds)
    if problem.horizon is not None:
        return _first(problem, result, problem.horizon, requests)
    system, workload = problem.system(result.deployment), problem.workload
    requests = requests_for(problem, result) if requests is None else requests
    recorded = bool(len(np.asarray(workload.arrivals)))
    if recorded:
        workload = stretch(workload, affordable(problem, result))
        requests, seeds = len(workload.arrivals), seeds[:1]
    summaries = [_summary(problem, system, workload, result.rate, requests, seed) for seed in seeds]
    found = goodput(
        system,
        workload,
        problem.slo,
        guess=result.goodput,
        requests=requests,
        seeds=seeds,
        tolerance=_TOLERANCE,
    )
    single = len(seeds) == 1
    return Simulated(
        goodput=found.value,
        goodput_interval=(-math.inf, math.inf) if single else (found.low, found.high),
        attainment=float(np.mean([s.attainment.value for s in summaries])),
        ttft=_average([s.ttft for s in summaries]),
        tpot=_average([s.tpot for s in summaries]),
        e2e=_average([s.e2e for s in summaries]),
        itl=_average_itl(summaries),
        requests=requests,
        runs=found.probes + len(summaries),
    )


def _users(
    problem: Problem,
    result: DeploymentResult,
    users: int,
    requests: int | None,
    seeds: Sequence[int],
) -> Simulated:
    """The check in a closed loop: throughput and latencies with all users."""
    turns = max(requests or requests_for(problem, result), _TURNS * users)
    summaries = []
    for seed in seeds:
        system, workload = problem.system(result.deployment), problem.workload
        records = simulate_closed(
            system,
            workload,
            users,
            requests=turns,
            seed=seed,
            record_gaps=problem.slo.itl is not None,
        )
        window = closed_window(users, turns)
        summaries.append(summarise(records, problem.slo, users=users, **window))
    found = estimate(np.array([s.throughput for s in summaries]))
    return Simulated(
        goodput=found.value,
        goodput_interval=(found.low, found.high),
        attainment=float(np.mean([s.attainment.value for s in summaries])),
        ttft=_average([s.ttft for s in summaries]),
        tpot=_average([s.tpot for s in summaries]),
        e2e=_average([s.e2e for s in summaries]),
        itl=_average_itl(summaries),
        requests=turns,
        runs=len(summaries),
    )


def _first(
    problem: Problem, result: DeploymentResult, horizon: int, requests: int | None
) -> Simulated:
    """The check over the first requests: at the rate of the row, and for its goodput."""
    system, workload = problem.system(result.deployment), stretch(problem.workload, horizon)
    count = runs_for(horizon, requests or MOST_FIRST)
    runs = simulate_first(system, workload, result.rate, horizon=horizon, runs=count)
    summary = summarise_first(runs, problem.slo)
    found = goodput_first(
        system,
        workload,
        problem.slo,
        guess=result.goodput,
        horizon=horizon,
        runs=count,
        tolerance=_TOLERANCE,
    )
    return Simulated(
        goodput=found.value,
        goodput_interval=(found.low, found.high),
        attainment=summary.attainment.value,
        ttft=_average([summary.ttft]),
        tpot=_average([summary.tpot]),
        e2e=_average([summary.e2e]),
        requests=horizon,
        runs=found.probes + len(runs),
    )


def requests_for(problem: Problem, result: DeploymentResult) -> int:
    """Requests of a run that keep its cost and its error small.

    A request costs the simulator a few events and its share of the decode iterations, which is
    its output length over the requests that decode together. However cheap or dear, a run is long
    against the limit on waiting (P99 of TTFT where there is none) and against the time that a
    request decodes and a batch takes to settle; and it has as many requests beyond the highest
    percentile asked for as the shortest run has beyond P90.
    """
    slo, (_, n_out) = problem.slo, problem.mean_lengths
    events = 3.0 + n_out / max(result.batch, 1.0)
    times = {limit.metric: limit.time for limit in limits_of(slo)}
    patience = times.get("ttft", min(result.ttft.p99, times.get("e2e", math.inf)))
    limits = _LIMITS_PER_RUN * result.rate * patience
    stay = n_out * min(result.tpot.mean, times.get("tpot", math.inf))
    # the fuller a batch, the longer it takes to forget that it was once empty
    settling = stay / (1.0 - min(result.decode_load, _FULLEST))
    shares = [limit.share for limit in request_limits(slo) if limit.share is not None]
    fewest = FEWEST_REQUESTS * max(1.0, 0.1 / (1.0 - max(shares, default=0.0)))
    wanted = max(_EVENTS / events, limits, _STAYS_PER_RUN * result.rate * settling, fewest)
    return round(min(wanted, MOST_REQUESTS))


def affordable(problem: Problem, result: DeploymentResult) -> int:
    """Requests of a recording that one run can replay in seconds.

    All up to `MOST_REQUESTS`, unless they decode nearly alone and each takes its own iterations.
    """
    events = 3.0 + problem.mean_lengths[1] / max(result.batch, 1.0)
    return round(min(max(_MOST_EVENTS / events, FEWEST_REQUESTS), MOST_REQUESTS))


def replay(problem: Problem, result: DeploymentResult) -> Replayed | None:
    """Serves the recording whose busiest window was planned for, at its own speed.

    Of a recording of more than `MOST_REQUESTS`, that many around its busiest 60 s. All of them
    count, as the busiest may be the first.

    Returns:
      None where no window was planned for, or the traffic has no recorded arrivals.
    """
    whole = problem.workload.whole
    if whole is None or not len(np.asarray(whole.arrivals)):
        return None
    arrivals = np.asarray(whole.arrivals)
    ends = np.searchsorted(arrivals, arrivals + _BUSY_WINDOW)
    middle = int(np.argmax(ends - np.arange(len(arrivals))))
    part = stretch(whole, MOST_REQUESTS, start=middle - MOST_REQUESTS // 2)
    times = np.asarray(part.arrivals)
    rate = (len(times) - 1) / float(times[-1] - times[0])
    system = problem.system(result.deployment)
    gaps = problem.slo.itl is not None
    records = simulate(system, part, rate, requests=len(times), seed=0, record_gaps=gaps)
    found = summarise(records, problem.slo, warmup=0.0, tail=0.0)
    return Replayed(
        rate=rate,
        attainment=found.attainment.value,
        ttft=_average([found.ttft]),
        tpot=_average([found.tpot]),
        requests=len(times),
        kept=excess(records, problem.slo) >= 0.0,
    )


def difference(result: DeploymentResult) -> float:
    """Goodput by the formulas over the simulated one, minus 1; ``nan`` without a simulation."""
    found = result.simulated
    if found is None:
        return math.nan
    return claimed(result) / found.goodput - 1.0 if found.goodput > 0 else math.inf


def with_check(result: DeploymentResult, found: Simulated) -> DeploymentResult:
    """A row with its simulation; its confidence falls where the two differ too much."""
    checked = dataclasses.replace(result, simulated=found)
    if result.concurrency is not None:
        checked = _same_attainment(checked, found)
    if not _surprising(checked):
        return checked
    level = "red" if abs(difference(checked)) > RED else "amber"
    what = "goodput" if result.concurrency is None else "throughput"
    reason = f"the formulas are {difference(checked):+.0%} off the simulated {what}"
    return _doubted(checked, level, reason)


def _same_attainment(row: DeploymentResult, found: Simulated) -> DeploymentResult:
    """A row of a closed loop, doubted where the simulated attainment is another."""
    off = row.attainment - found.attainment
    if abs(off) <= AMBER:
        return row
    reason = f"attainment is {row.attainment:.0%} by the formulas, {found.attainment:.0%} simulated"
    return _doubted(row, "red" if abs(off) > RED else "amber", reason)


def claimed(row: DeploymentResult) -> float:
    """What a simulation is compared with: goodput, or the throughput of a closed loop, 1/s."""
    return row.goodput if row.concurrency is None else row.rate


def with_neighbours(rows: Sequence[DeploymentResult]) -> list[DeploymentResult]:
    """Rows of one question; where a checked one surprised, the unchecked ones are not green."""
    surprising = [r for r in rows if _surprising(r)]
    if not surprising:
        return list(rows)
    worst = max(surprising, key=lambda r: abs(difference(r)))
    reason = (
        f"not simulated, and the formulas are {difference(worst):+.0%} off for "
        f"{worst.deployment.label}"
    )
    return [r if r.simulated is not None else _doubted(r, "amber", reason) for r in rows]


def _surprising(row: DeploymentResult) -> bool:
    """Whether the two differ by more than `AMBER` and more than the simulation's interval."""
    if row.simulated is None:
        return False
    low, high = row.simulated.goodput_interval
    excused = math.isfinite(low) and low <= claimed(row) <= high
    return abs(difference(row)) > AMBER and not excused


def _doubted(row: DeploymentResult, level: str, reason: str) -> DeploymentResult:
    """A row with one more reason, and a confidence of at most `level`."""
    level = "red" if row.confidence == "red" else level
    return dataclasses.replace(row, confidence=level, reasons=(*row.reasons, reason))


def _summary(
    problem: Problem,
    system: System | AggregatedSystem,
    workload: Workload,
    rate: float,
    requests: int,
    seed: int,
) -> Summary:
    gaps = problem.slo.itl is not None
    records = simulate(system, workload, rate, requests=requests, seed=seed, record_gaps=gaps)
    return summarise(records, problem.slo)


def _average_itl(parts: list[Summary]) -> Latency | None:
    """The same of ITL; None where no gaps were recorded."""
    found = [part.gaps.itl for part in parts if part.gaps is not None]
    return _average(found) if found else None


def _average(parts: list) -> Latency:
    """Mean over runs of the mean and of each quantile."""
    names = ["mean", "p50", "p90", "p99"]
    names += ["at_share"] if all(p.at_share is not None for p in parts) else []
    return Latency(**{name: float(np.mean([getattr(p, name) for p in parts])) for name in names})


def stretch(workload: Workload, most: int, *, start: int = 0) -> Workload:
    """Consecutive requests of a recording; rates then mean those of this stretch.

    Args:
      workload: the recording.
      most: requests to take; all where there are fewer.
      start: the first of them, moved so that `most` are left behind it.
    """
    lengths, arrivals = workload.lengths, np.asarray(workload.arrivals)
    start = max(min(start, len(arrivals) - most), 0)
    part = slice(start, start + most)
    if isinstance(lengths, JointLengths) and len(np.asarray(lengths.n_in)) == len(arrivals):
        pairs = np.asarray(lengths.n_in)[part], np.asarray(lengths.n_out)[part]
        lengths = JointLengths(n_in=pairs[0], n_out=pairs[1])
    return dataclasses.replace(workload, lengths=lengths, arrivals=arrivals[part])
