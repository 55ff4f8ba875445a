"""The largest rate at which enough requests meet their limits, found by simulation."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from fluidserve.errors import InputError
from fluidserve.eventsim.arrivals import draw_requests
from fluidserve.eventsim.measure import estimate, excess, growth
from fluidserve.eventsim.runs import run
from fluidserve.specs.slo import Slo, limits_of
from fluidserve.specs.workload import Workload
from fluidserve.timing.instance import AggregatedSystem, System
from fluidserve.timing.kv import tokens_held

_IDLE_REQUESTS = 1000
_LARGEST_STEP = 4.0
_MOST_STEPS = 40
_MOST_GROWTH = 0.01

Probe = tuple[float, float]
"""A rate and the margin there."""


@dataclasses.dataclass(frozen=True)
class GoodputEstimate:
    """Goodput by independent replications, all in 1/s.

    Attributes:
      value: mean over the seeds; 0 where even an idle system misses the target.
      low: lower end of the 95 % interval (Student), not below zero.
      high: upper end.
      se: standard error of the mean; ``inf`` from a single seed.
      probes: runs that were needed.
    """

    value: float
    low: float
    high: float
    se: float
    probes: int


def goodput(
    system: System | AggregatedSystem,
    workload: Workload,
    slo: Slo,
    *,
    guess: float | int,
    requests: int = 20_000,
    seeds: Sequence[int] = (0, 1, 2),
    tolerance: float = 0.005,
    warmup: float = 0.1,
    tail: float = 0.05,
) -> GoodputEstimate:
    """Solves ``excess(rate) = 0`` once per seed: all shares of the promise at their targets.

    Every rate sees the same requests, only closer together, so attainment falls almost smoothly.
    It is the share of a window of a finite run (`Records.window`): above capacity the backlog
    needs time to build up, so a short run can meet the target at a rate that no system could
    sustain. The window leaves out the early requests, which profit most; runs should be long
    against the limits, and a goodput above the capacity of a pool is a sign that they are not.
    Where the promise leaves TTFT or TPOT without limit, a backlog would never miss it: there a rate
    also fails if late in the run more than 1 % of the arrivals stay (`growth`).

    Args:
      system: the deployment.
      workload: lengths and the pattern of arrivals.
      slo: limits and the share that must meet them.
      guess: where to start, 1/s; the closer, the fewer probes. Not positive: start at 1.
      requests: of each run.
      seeds: one replication each.
      tolerance: relative width of the last bracket, inside which the rate is interpolated.
      warmup: share of the requests left out at the start.
      tail: share left out at the end.

    Raises:
      InputError: no seeds, or the target is met at any rate because the run is too short.
    """
    if not seeds:
        raise InputError("seeds: give at least one")
    guess = float(guess) if 0 < guess < math.inf else 1.0
    idle = idle_probe(system, workload, slo)
    if idle[1] < 0:
        return GoodputEstimate(value=0.0, low=0.0, high=0.0, se=0.0, probes=1)
    probes, rates, step = 1, [], 1.1
    for seed in seeds:
        margin = _Margin(system, workload, slo, requests, seed, warmup, tail)
        low, high = bracket(margin, guess, step, idle)
        guess, step = narrow(margin, low, high, tolerance), 1.02
        rates.append(guess)
        probes += margin.probes
    mean = estimate(np.array(rates))
    low_end = max(mean.low, 0.0)
    return GoodputEstimate(value=mean.value, low=low_end, high=mean.high, se=mean.se, probes=probes)


class _Margin:
    """What the promise has to spare as a function of the rate, for one seed."""

    def __init__(
        self,
        system: System | AggregatedSystem,
        workload: Workload,
        slo: Slo,
        requests: int,
        seed: int,
        warmup: float,
        tail: float,
    ):
        self._unit, self._n_in, self._n_out = draw_requests(workload, requests, seed=seed)
        self._system, self._slo = system, slo
        self._warmup, self._tail, self._seed = warmup, tail, seed
        limited = {limit.metric for limit in limits_of(slo)}
        self._open = not ("e2e" in limited or {"ttft", "tpot"} <= limited)
        self.probes = 0

    def __call__(self, rate: float) -> Probe:
        """One run."""
        self.probes += 1
        arrival = self._unit / rate
        gaps = self._slo.itl is not None
        records = run(
            self._system, arrival, self._n_in, self._n_out, record_gaps=gaps, seed=self._seed
        )
        spare = excess(records.window(warmup=self._warmup, tail=self._tail), self._slo)
        if self._open:
            spare = min(spare, _MOST_GROWTH - growth(records))
        return rate, spare


def idle_probe(system: System | AggregatedSystem, workload: Workload, slo: Slo) -> Probe:
    """The margin of requests that never meet each other, at a rate where they hardly would."""
    _, n_in, n_out = draw_requests(workload, _IDLE_REQUESTS, seed=0)
    spacing = _time_alone(system, float(n_in.max()), float(n_out.max()))
    arrival, gaps = np.arange(_IDLE_REQUESTS) * spacing, slo.itl is not None
    records = run(system, arrival, n_in, n_out, record_gaps=gaps)
    return 0.01 / spacing, excess(records, slo)


def _time_alone(system: System | AggregatedSystem, n_in: float, n_out: float) -> float:
    """Longest time that requests of up to so many tokens spend in an empty system, s."""
    context = n_in + n_out
    if isinstance(system, AggregatedSystem):
        one, budget = system.instance, system.token_budget
        step = one.times.stage_time(one.chunk_work(n_in, min(n_in, float(budget or n_in))))
        pieces = math.ceil(n_in / float(budget or n_in))
        stage = pieces * step + n_out * one.decode_time(1.0, context, context)
        return float(one.pp * stage)
    return float(
        system.prefill.pp * system.prefill.prefill_time(n_in)
        + tokens_held(system.kv, n_in) * system.kv_bytes_per_token / system.link_bandwidth
        + system.handover_overhead
        + n_out * system.decode.pp * system.decode.decode_time(1.0, context, context)
    )


def bracket(
    margin: Callable[[float], Probe], guess: float, step: float, idle: Probe
) -> tuple[Probe, Probe]:
    """Neighbouring rates that meet and miss the target, by growing steps from `guess`."""
    here = margin(guess)
    for _ in range(_MOST_STEPS):
        meets = here[1] >= 0
        if not meets and here[0] / step <= idle[0]:
            return idle, here
        there = margin(here[0] * step if meets else here[0] / step)
        if meets != (there[1] >= 0):
            return (here, there) if meets else (there, here)
        here, step = there, min(step * step, _LARGEST_STEP)
    raise InputError(
        f"requests: attainment still meets the target at {here[0]:g} requests/s; the run is too "
        "short to overload the system, take more requests"
    )


def narrow(margin: Callable[[float], Probe], low: Probe, high: Probe, tolerance: float) -> float:
    """Closes the bracket and interpolates inside it.

    Regula falsi that stays half a tolerance away from both ends, so that a probe close to the
    root is followed by one on its other side; after two probes on one side it bisects.
    """
    same_side, last_met = 0, None
    while high[0] > low[0] * (1.0 + tolerance):
        if same_side >= 2 or high[0] > _LARGEST_STEP * low[0]:
            rate, same_side = math.sqrt(low[0] * high[0]), 0
        else:
            edge = 0.5 * tolerance * low[0]
            rate = min(max(_root(low, high), low[0] + edge), high[0] - edge)
        here = margin(rate)
        met = here[1] >= 0
        low, high = (here, high) if met else (low, here)
        same_side = same_side + 1 if met == last_met else 1
        last_met = met
    return _root(low, high)


def _root(low: Probe, high: Probe) -> float:
    """Where the straight line through two probes is zero."""
    return low[0] + (high[0] - low[0]) * low[1] / (low[1] - high[1])
