"""Recorded traffic: what a request trace is, its statistics and the workload it makes."""

import dataclasses
from pathlib import Path

import numpy as np

from fluidserve.errors import InputError
from fluidserve.specs.workload import JointLengths, Workload
from fluidserve.units import check_positive

MOST_PAIRS = 1_000_000
"""Traces with more requests give this many (prompt, output) pairs to a workload."""
MOST_DROPPED = 0.5
"""Share of rows without tokens beyond which a trace is refused."""

_MANY_TIES = 0.1


@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """Requests in order of arrival.

    Attributes:
      name: file name.
      format: what the file was recognised as.
      n_in: prompt tokens, integers above 0, shape ``(n,)``.
      n_out: output tokens, the same.
      arrival: times after the first arrival, s, same shape, not decreasing; None when the file has
        lengths only.
      hash_ids: block identities of each prompt (equal numbers are equal prefixes); None when the
        file has none.
      notes: sentences on what was decided while reading and on rows left out.
    """

    name: str
    format: str
    n_in: np.ndarray
    n_out: np.ndarray
    arrival: np.ndarray | None = None
    hash_ids: list[np.ndarray] | None = None
    notes: list[str] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.n_in)

    @property
    def duration(self) -> float:
        """Time from the first to the last arrival, s; ``nan`` without arrival times."""
        return float("nan") if self.arrival is None else float(self.arrival[-1])

    @property
    def rate(self) -> float:
        """Mean arrival rate ``(n - 1) / duration``, 1/s; ``nan`` when that is not defined.

        One less than the requests, because n arrivals have n - 1 times between them: this is the
        reciprocal of their mean.
        """
        return (len(self) - 1) / self.duration if self.duration > 0 else float("nan")

    @property
    def arrival_scv(self) -> float:
        """Squared coefficient of variation of the times between arrivals; 1 for Poisson traffic.

        ``nan`` with fewer than three requests, without arrival times, or when all are equal.
        """
        if self.arrival is None or len(self) < 3 or self.duration == 0:
            return float("nan")
        gaps = np.diff(self.arrival)
        return float(gaps.var() / gaps.mean() ** 2)

    def burstiness(self, window: float | int = 60.0) -> float:
        """Variance over mean of the number of arrivals in whole windows (index of dispersion).

        1 for Poisson traffic at any window; unlike `arrival_scv` it grows with `window` when busy
        spells last.

        Args:
          window: length of a window, s.

        Returns:
          the ratio; ``nan`` without arrival times or with fewer than two whole windows.

        Raises:
          InputError: `window` is not a positive number.
        """
        check_positive(float(window), name="window")
        if self.arrival is None or self.duration < 2 * window:
            return float("nan")
        windows = self.duration // window
        index, counts = np.unique(self.arrival // window, return_counts=True)
        counts = counts[index < windows]
        mean = counts.sum() / windows
        return float(((counts**2).sum() / windows - mean**2) / mean)


def trace_workload(trace: Trace, name: str | None = None) -> Workload:
    """The traffic of a trace.

    Args:
      trace: what was read.
      name: name of the workload; the file name when left out.

    Returns:
      observed pairs of lengths, rate, arrivals and their variability. Without usable arrival times
      the rate is ``nan``, arrivals are empty, `arrival_scv` and `dispersion` are 1. Of more than
      `MOST_PAIRS` requests, that many pairs are taken, evenly spaced in order of arrival.
    """
    pick = slice(None)
    if len(trace) > MOST_PAIRS:
        pick = np.arange(MOST_PAIRS) * len(trace) // MOST_PAIRS
    scv, dispersion = trace.arrival_scv, trace.burstiness(60.0)
    return Workload(
        name=trace.name if name is None else name,
        lengths=JointLengths(n_in=trace.n_in[pick], n_out=trace.n_out[pick]),
        arrival_scv=1.0 if np.isnan(scv) else scv,
        dispersion=1.0 if np.isnan(dispersion) else dispersion,
        rate=trace.rate,
        arrivals=np.empty(0) if trace.arrival is None or trace.duration == 0 else trace.arrival,
    )


def tidy_trace(
    path: Path,
    *,
    format: str,
    arrival: np.ndarray | None,
    n_in: np.ndarray,
    n_out: np.ndarray,
    hash_ids: list[np.ndarray] | None,
    notes: list[str],
) -> Trace:
    """Leaves out rows without tokens, sorts by time, counts from the first arrival, adds notes."""
    notes = list(notes)
    keep = np.flatnonzero((n_in > 0) & (n_out > 0))
    if len(keep) < len(n_in):
        dropped = f"{len(n_in) - len(keep):,} of {len(n_in):,} rows"
        why = (
            f"{np.count_nonzero(n_in == 0):,} with zero or missing prompt tokens, "
            f"{np.count_nonzero(n_out == 0):,} with zero or missing output tokens"
        )
        if len(keep) < (1 - MOST_DROPPED) * len(n_in):
            raise InputError(
                f"{path}: {dropped} have no tokens ({why}); at most half may lack them"
            )
        notes.append(f"{dropped} left out: {why}.")

    if arrival is not None:
        arrival = arrival[keep]
        backward = np.count_nonzero(np.diff(arrival) < 0)
        if backward:
            order = np.argsort(arrival, kind="stable")
            arrival, keep = arrival[order], keep[order]
            notes.append(
                f"Sorted by arrival time: {backward:,} rows were earlier than the one before."
            )
        arrival -= arrival[0]
        notes += _arrival_notes(np.asarray(arrival))
    n_in, n_out = n_in[keep], n_out[keep]
    if len(keep) > MOST_PAIRS:
        notes.append(
            f"Lengths are those of {MOST_PAIRS:,} of the {len(keep):,} requests, evenly spaced; "
            "arrivals are all kept."
        )
    return Trace(
        name=path.name,
        format=format,
        n_in=n_in,
        n_out=n_out,
        arrival=arrival,
        hash_ids=None if hash_ids is None else [hash_ids[i] for i in keep],
        notes=notes,
    )


def _arrival_notes(arrival: np.ndarray) -> list[str]:
    if arrival[-1] == 0:
        return ["All requests arrive at one time, so that the trace brings no rate."]
    gaps = np.diff(arrival)
    notes = []
    ties = np.count_nonzero(gaps == 0) / len(gaps)
    if ties > _MANY_TIES:
        step = gaps[gaps > 0].min()
        notes.append(
            f"{ties:.0%} of the requests arrive at the very time of the one before (smallest other "
            f"distance {step:.3g} s): the clock is coarse, and the variability of arrivals is in "
            "part that of its batches."
        )
    if len(gaps) < 2:
        notes.append("Too few requests for a variability of arrivals; taken as Poisson.")
    return notes
