"""Runs of a system of any kind: a stream of requests, or users who wait for their answers."""

from typing import Any

import numpy as np

from fluidserve.errors import InputError
from fluidserve.eventsim import aggregated, disaggregated
from fluidserve.eventsim.records import Log, Records
from fluidserve.eventsim.sources import Source, Stream, Users
from fluidserve.timing.instance import AggregatedSystem, System


def run(
    system: System | AggregatedSystem,
    arrival: np.ndarray,
    n_in: np.ndarray,
    n_out: np.ndarray,
    *,
    record_gaps: bool = False,
    seed: int = 0,
) -> Records:
    """Serves every request and ends when the last token has left; overload ends too.

    Args:
      system: the deployment; one, not a batch.
      arrival: arrival times, s, sorted.
      n_in: prompt tokens, whole numbers.
      n_out: output tokens, whole numbers.
      record_gaps: also keep every time between two tokens.
      seed: of random dispatch; without effect under the other rules.

    Returns:
      one record per request.

    Raises:
      InputError: arrays that are no request stream, or a request that no instance has room for.
    """
    log = checked_log(arrival, n_in, n_out)
    return _serve(system, log, Stream(log), record_gaps, seed)


def run_closed(
    system: System | AggregatedSystem,
    users: int,
    n_in: np.ndarray,
    n_out: np.ndarray,
    *,
    over: float = 0.0,
    record_gaps: bool = False,
    seed: int = 0,
) -> Records:
    """Serves users who each send the next request when the last token of theirs has left.

    Args:
      system: the deployment; one, not a batch.
      users: how many, at least one; those beyond the number of requests have nothing to send.
      n_in: prompt tokens of the requests in the order in which they are sent, whole numbers.
      n_out: their output tokens, whole numbers.
      over: time over which the users begin, evenly, s; 0 is all at once.
      record_gaps: also keep every time between two tokens.
      seed: of random dispatch; without effect under the other rules.

    Returns:
      one record per request.

    Raises:
      InputError: no users, a negative time, or what `run` raises.
    """
    if users < 1:
        raise InputError(f"concurrency = {users} must be at least 1")
    if not 0 <= over < float("inf"):
        raise InputError(f"over = {over} must be a finite time, not negative")
    log = checked_log(np.zeros(len(n_in)), n_in, n_out)
    return _serve(system, log, Users(log, np.arange(users) * (over / users)), record_gaps, seed)


def _serve(
    system: System | AggregatedSystem, log: Log, source: Source, record_gaps: bool, seed: int
) -> Records:
    """Serves the requests of a log."""
    if isinstance(system, System):
        return disaggregated.serve(system, log, source, record_gaps=record_gaps, seed=seed)
    return aggregated.serve(system, log, source, record_gaps=record_gaps, seed=seed)


def checked_log(arrival: Any, n_in: Any, n_out: Any) -> Log:
    """The log of a run that may begin.

    Raises:
      InputError: arrays that are no request stream.
    """
    arrival = np.asarray(arrival, np.float64)
    n_in, n_out = np.asarray(n_in), np.asarray(n_out)
    if arrival.ndim != 1 or not len(arrival) or not arrival.shape == n_in.shape == n_out.shape:
        raise InputError(
            "requests: arrival, n_in and n_out must be non-empty and of one length; got shapes "
            f"{arrival.shape}, {n_in.shape}, {n_out.shape}"
        )
    if not np.isfinite(arrival).all() or arrival[0] < 0 or (np.diff(arrival) < 0).any():
        raise InputError("arrival: times must be finite, not negative and sorted")
    for name, tokens in (("n_in", n_in), ("n_out", n_out)):
        if (tokens < 1).any() or (tokens != np.rint(tokens)).any():
            raise InputError(f"{name}: token counts must be whole numbers of at least 1")
    return Log(arrival, n_in.astype(np.int64), n_out.astype(np.int64))
