"""When requests come, at one request per second on average; divide by a rate to scale.

Scaling keeps the pattern, so that two rates are compared under the same randomness.
"""

import numpy as np

from fluidserve.errors import InputError
from fluidserve.specs.workload import JointLengths, Workload, draw_lengths, stratified

LARGEST_SCV = 100.0
"""Largest squared coefficient of variation between arrivals that are drawn."""


def streams(seed: int) -> tuple[np.random.Generator, np.random.Generator]:
    """Independent generators for arrivals and for lengths, both derived from one seed."""
    arrivals, lengths = np.random.SeedSequence(seed).spawn(2)
    return np.random.default_rng(arrivals), np.random.default_rng(lengths)


def gamma_arrivals(
    n: int, rng: np.random.Generator, *, scv: float | int = 1.0, stratify: bool = True
) -> np.ndarray:
    """Arrival times with independent gamma gaps of mean 1 s.

    Args:
      n: requests.
      rng: source of randomness.
      scv: squared coefficient of variation of the gaps: 0 is deterministic, 1 is Poisson.
      stratify: use the exact quantiles of the gaps in random order, scaled to a mean of exactly 1,
        instead of independent draws. The load of the run is then the load asked for, and counts
        over long times vary less than independent gaps would make them.

    Returns:
      increasing times, s, shape ``(n,)``.

    Raises:
      InputError: no requests, or `scv` negative or above `LARGEST_SCV`, where most gamma gaps are
        as good as zero and no traffic looks like that.
    """
    if n < 1:
        raise InputError(f"requests = {n} must be at least 1")
    if not 0 <= scv < np.inf:
        raise InputError(f"arrival_scv = {scv} must be a finite number, not negative")
    if scv > LARGEST_SCV:
        raise InputError(
            f"a cv of {scv**0.5:.3g} between arrivals is too much for independent gaps; replay a "
            "recording, or plan for a busiest window (--rate-of peak-10s)"
        )
    if scv == 0:
        return np.arange(1.0, n + 1.0)
    if not stratify:
        return np.cumsum(rng.gamma(1.0 / scv, scv, size=n))
    u = stratified(n, rng)
    if scv == 1:
        gaps = -np.log1p(-u)
    else:
        from scipy.special import gammaincinv

        gaps = gammaincinv(1.0 / scv, u)
    return np.cumsum(gaps / gaps.mean())


def trace_arrivals(n: int, times: np.ndarray) -> np.ndarray:
    """Recorded arrival times in their own order, scaled to one request per second.

    A trace shorter than `n` is repeated; one mean gap joins the end to the start.

    Args:
      n: requests.
      times: recorded times, s, at least two, sorted.

    Returns:
      times, s, shape ``(n,)``; the first is 0.

    Raises:
      InputError: fewer than two times, unsorted ones, or all equal.
    """
    times = np.asarray(times, np.float64)
    if n < 1 or times.ndim != 1 or len(times) < 2 or not np.isfinite(times).all():
        raise InputError("arrivals: a trace needs at least two finite times")
    gaps = np.diff(times)
    if (gaps < 0).any() or times[-1] == times[0]:
        raise InputError("arrivals: trace times must be sorted and not all equal")
    gaps = np.append(gaps, gaps.mean()) / gaps.mean()
    return np.concatenate([[0.0], np.cumsum(np.resize(gaps, n - 1))])


def draw_requests(
    workload: Workload, n: int, *, seed: int, stratify: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Arrival times at one request per second, prompt tokens and output tokens.

    A workload with recorded arrivals is replayed in order; if it has as many length pairs as
    arrivals, each pair stays with its arrival.

    Args:
      workload: what arrives.
      n: requests.
      seed: one seed for everything.
      stratify: use exact quantiles in random order for gaps and for lengths.
    """
    for_arrivals, for_lengths = streams(seed)
    lengths, recorded = workload.lengths, np.asarray(workload.arrivals)
    if not len(recorded):
        scv = float(workload.arrival_scv)
        arrival = gamma_arrivals(n, for_arrivals, scv=scv, stratify=stratify)
        return arrival, *draw_lengths(lengths, n, for_lengths, stratify=stratify)
    arrival = trace_arrivals(n, recorded)
    if isinstance(lengths, JointLengths) and len(np.asarray(lengths.n_in)) == len(recorded):
        n_in, n_out = (np.resize(np.asarray(x), n) for x in (lengths.n_in, lengths.n_out))
        return arrival, n_in.astype(np.int64), n_out.astype(np.int64)
    return arrival, *draw_lengths(lengths, n, for_lengths, stratify=stratify)
