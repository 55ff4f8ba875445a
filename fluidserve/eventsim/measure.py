"""Metrics of a simulated run, with the interval that its length allows."""

import dataclasses
import math
from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from fluidserve.errors import InputError
from fluidserve.eventsim.arrivals import draw_requests, streams
from fluidserve.eventsim.records import Records
from fluidserve.eventsim.runs import run, run_closed
from fluidserve.specs.slo import (
    Limit,
    Slo,
    joint_limits,
    limits_of,
    percentile_name,
    reported_limits,
    request_limits,
)
from fluidserve.specs.workload import Workload, draw_lengths
from fluidserve.timing.instance import AggregatedSystem, System

_ROUNDING = 1.0 + 1e-9
_SETTLING = 3
_DRAINING = 2
FEWEST_TURNS = 10
"""Requests of each user, on average, below which a closed loop shows mostly its start and end."""


def simulate(
    system: System | AggregatedSystem,
    workload: Workload,
    rate: float | int,
    *,
    requests: int,
    seed: int,
    stratify: bool = True,
    record_gaps: bool = False,
) -> Records:
    """Draws requests and serves them. The same seed at another rate gives the same requests.

    Args:
      system: the deployment.
      workload: lengths and the pattern of arrivals.
      rate: mean arrival rate, 1/s.
      requests: how many.
      seed: one seed for everything.
      stratify: exact quantiles in random order instead of independent draws.
      record_gaps: also keep every time between two tokens.

    Returns:
      every request, including those that `Records.window` leaves out of metrics.

    Raises:
      InputError: a rate that is not positive and finite, or what `run` raises.
    """
    if not 0 < rate < math.inf:
        raise InputError(f"rate = {rate} must be positive and finite (1/s)")
    unit, n_in, n_out = draw_requests(workload, requests, seed=seed, stratify=stratify)
    return run(system, unit / rate, n_in, n_out, record_gaps=record_gaps, seed=seed)


def simulate_closed(
    system: System | AggregatedSystem,
    workload: Workload,
    users: int,
    *,
    requests: int,
    seed: int,
    stratify: bool = True,
    record_gaps: bool = False,
) -> Records:
    """Draws lengths and serves users who begin together and wait for their answers.

    Recorded arrivals mean nothing here: a workload only gives lengths.

    Args:
      system: the deployment.
      workload: lengths.
      users: how many, each with one request at a time.
      requests: of all users together.
      seed: one seed for everything.
      stratify: exact quantiles in random order instead of independent draws.
      record_gaps: also keep every time between two tokens.

    Returns:
      every request; `closed_window` says which to leave out of metrics.

    Raises:
      InputError: what `run_closed` raises.
    """
    _, for_lengths = streams(seed)
    n_in, n_out = draw_lengths(workload.lengths, requests, for_lengths, stratify=stratify)
    return run_closed(system, users, n_in, n_out, record_gaps=record_gaps, seed=seed)


class Window(TypedDict):
    """Shares of the requests, in the order of arrival, that metrics leave out."""

    warmup: float
    tail: float


def closed_window(users: int, requests: int) -> Window:
    """Shares at the start and at the end of a closed loop that `summarise` should leave out.

    Users who begin together stay in step for some turns, and the last requests meet users who
    have nothing left to send.

    Returns:
      `warmup` and `tail`: a tenth and a twentieth, or three and two turns of each user if longer.

    Raises:
      InputError: less than `FEWEST_TURNS` turns.
    """
    if requests < FEWEST_TURNS * users:
        raise InputError(
            f"requests = {requests} are too few for {users} users; take at least "
            f"{FEWEST_TURNS * users}, {FEWEST_TURNS} for each"
        )
    return {
        "warmup": max(0.1, _SETTLING * users / requests),
        "tail": max(0.05, _DRAINING * users / requests),
    }


def meets(records: Records, slo: Slo) -> np.ndarray:
    """Which requests meet the joint limits, or all limits where none is joint.

    A limit is met up to a relative rounding error of 1e-9; a single token always meets TPOT. Where
    the only limit is on ITL, it says which gaps meet that, if there are any.
    """
    limits = reported_limits(slo)
    if limits and not request_limits(slo):
        met = _within(records, limits[0])
        if len(met):
            return met
        limits = []
    met = np.ones(len(records), bool)
    for limit in limits:
        met &= _within(records, limit)
    return met


def attainment(records: Records, slo: Slo) -> float:
    """Share of the given requests that `meets` the limits; take `Records.window` first."""
    return float(meets(records, slo).mean())


def margins(records: Records, slo: Slo) -> np.ndarray:
    """What the share of each constraint of the promise is above its target, (constraints,).

    The joint attainment, where it is asked for, comes first. It is over all requests; so is the
    share of a limit by itself, except for TPOT, which counts the requests with two and more output
    tokens, and for ITL, which counts their gaps; both are met where there is none. Take
    `Records.window` first.

    Raises:
      InputError: a limit on ITL, and records without gaps.
    """
    found = []
    if joint_limits(slo) or not limits_of(slo):
        found.append(attainment(records, slo) - float(slo.attainment))
    for limit in limits_of(slo):
        if limit.share is not None:
            met = _within(records, limit)
            met = met[records.n_out > 1] if limit.metric == "tpot" else met
            found.append(float(met.mean() if len(met) else 1.0) - limit.share)
    return np.array(found)


def excess(records: Records, slo: Slo) -> float:
    """The smallest of the `margins`; not negative where the promise is kept."""
    return float(margins(records, slo).min())


def _within(records: Records, limit: Limit) -> np.ndarray:
    """Which requests, for ITL which gaps, meet a limit."""
    if limit.metric == "itl":
        if records.gaps is None:
            name = percentile_name(limit.share or 0.0)
            raise InputError(f"{name} ITL: the records have no gaps; run with record_gaps")
        times = records.gaps.values
    else:
        times = getattr(records, limit.metric)
    return times <= limit.time * _ROUNDING


def growth(records: Records) -> float:
    """Share of the arrivals by which the requests in the system grow late in a whole run.

    Above capacity r, at a rate of R, it is ``1 - r / R``; below, it is small.
    """
    n = len(records)
    inside = np.arange(1, n + 1) - np.searchsorted(np.sort(records.last_token), records.arrival)
    third, last = inside[n // 2 : 3 * n // 4], inside[3 * n // 4 :]
    return float(last.mean() - third.mean()) / max(n / 4, 1.0)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % interval.

    Attributes:
      value: the mean.
      se: its standard error; ``inf`` from a single value.
      low: lower end of the interval.
      high: upper end.
    """

    value: float
    se: float
    low: float
    high: float


def estimate(values: np.ndarray) -> Estimate:
    """Mean of independent values with Student's interval; without bounds from a single value."""
    n, mean = len(values), float(np.mean(values))
    if n < 2:
        return Estimate(value=mean, se=math.inf, low=-math.inf, high=math.inf)
    from scipy.special import stdtrit

    se = float(np.std(values, ddof=1) / math.sqrt(n))
    half = float(stdtrit(n - 1, 0.975)) * se
    return Estimate(value=mean, se=se, low=mean - half, high=mean + half)


@dataclasses.dataclass(frozen=True)
class Quantiles:
    """Mean and quantiles of a time, s; `at_share` at the share its limit asks for by itself."""

    mean: float
    p50: float
    p90: float
    p99: float
    at_share: float | None = None


STALL = 5.0
"""Times the median gap, above which a gap counts as a stall."""


@dataclasses.dataclass(frozen=True)
class GapSummary:
    """Gaps between tokens.

    Attributes:
      itl: all gaps of all requests in one sample.
      longest: the longest gap of each request with two and more output tokens.
      stalled: share of these requests with a gap above `STALL` times the median of all gaps.
    """

    itl: Quantiles
    longest: Quantiles
    stalled: float


@dataclasses.dataclass(frozen=True)
class Summary:
    """Metrics of a run.

    Attributes:
      ttft: time to first token.
      tpot: mean time per output token after the first, over the requests with two and more; all
        ``nan`` where there is none.
      e2e: time from arrival to the last token.
      attainment: share of requests that `meets` the limits, by batch means.
      throughput: requests that finish per second between the first and the last arrival of the
        window; in a closed loop by Little's law.
      requests: requests in the window.
      gaps: single gaps between tokens; None where they were not recorded.
    """

    ttft: Quantiles
    tpot: Quantiles
    e2e: Quantiles
    attainment: Estimate
    throughput: float
    requests: int
    gaps: GapSummary | None = None


def summarise(
    records: Records,
    slo: Slo,
    *,
    warmup: float = 0.1,
    tail: float = 0.05,
    batches: int = 20,
    users: int | None = None,
) -> Summary:
    """Metrics over the window of a run.

    The interval of the attainment comes from means of consecutive batches, taken as independent;
    a batch should be long against the time that congestion lasts. Stratified requests make it a
    little too wide. It is clipped to 0 and 1.

    Args:
      records: a whole run.
      slo: the limits.
      warmup: share of the requests left out at the start.
      tail: share left out at the end.
      batches: how many.
      users: of a closed loop. Its throughput is users over the mean time from arrival to last token
        (Little's law); a count over the window depends on where in a wave of users it ends.

    Raises:
      InputError: fewer requests in the window than batches.
    """
    kept = records.window(warmup=warmup, tail=tail)
    if len(kept) < batches:
        raise InputError(f"summarise: {len(kept)} requests do not fill {batches} batches")
    met = meets(kept, slo).astype(np.float64)
    by_batch = estimate(np.array([b.mean() for b in np.array_split(met, min(batches, len(met)))]))
    together = dataclasses.replace(
        by_batch,
        value=float(met.mean()),
        low=max(by_batch.low, 0.0),
        high=min(by_batch.high, 1.0),
    )
    first, last = kept.arrival[0], kept.arrival[-1]
    if users is not None:
        throughput = users / float((kept.last_token - kept.arrival).mean())
    else:
        done = np.count_nonzero((records.last_token > first) & (records.last_token <= last))
        throughput = float(done / (last - first)) if last > first else 0.0
    share = {limit.metric: limit.share for limit in limits_of(slo)}
    return Summary(
        ttft=quantiles(kept.ttft, share.get("ttft")),
        tpot=quantiles(kept.tpot[kept.n_out > 1], share.get("tpot")),
        e2e=quantiles(kept.e2e, share.get("e2e")),
        attainment=together,
        throughput=throughput,
        requests=len(kept),
        gaps=summarise_gaps([kept], share.get("itl")),
    )


def summarise_gaps(parts: Sequence[Records], share: float | None = None) -> GapSummary | None:
    """Gaps of all requests of some runs; None where they were not recorded.

    Args:
      parts: runs, or windows of them.
      share: where to take a quantile of ITL besides the usual ones.
    """
    recorded = [r.gaps for r in parts if r.gaps is not None]
    if len(recorded) < len(parts):
        return None
    every = np.concatenate([gaps.values for gaps in recorded])
    longest = np.concatenate([gaps.longest() for gaps in recorded])
    itl = quantiles(every, share)
    return GapSummary(
        itl=itl,
        longest=quantiles(longest),
        stalled=float((longest > STALL * itl.p50).mean()) if len(longest) else 0.0,
    )


def quantiles(times: np.ndarray, share: float | None = None) -> Quantiles:
    """Mean and quantiles of some times, s, at a share of its own too; ``nan`` without any."""
    levels = [0.5, 0.9, 0.99] + ([] if share is None else [share])
    found = np.quantile(times, levels) if len(times) else np.full(len(levels), math.nan)
    p50, p90, p99, *other = (float(x) for x in found)
    mean = float(times.mean()) if len(times) else math.nan
    return Quantiles(mean=mean, p50=p50, p90=p90, p99=p99, at_share=other[0] if other else None)
