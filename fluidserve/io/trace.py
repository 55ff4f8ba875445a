"""Recorded traffic: what a request trace is, its statistics and the workload it makes."""

import dataclasses
import functools
from pathlib import Path

import numpy as np

from fluidserve.errors import InputError
from fluidserve.specs.workload import JointLengths, Peak, Workload
from fluidserve.units import check_positive

MOST_PAIRS = 1_000_000
"""Traces with more requests give this many (prompt, output) pairs to a workload."""
MOST_DROPPED = 0.5
"""Share of rows without tokens beyond which a trace is refused."""

_MANY_TIES = 0.1
_OFF_THE_GRID = 0.02
_ROUNDING = 1e-9
_FINEST_CLOCK = 1e-9


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

    @functools.cached_property
    def tick(self) -> float:
        """Step of a coarse clock, s; 0 where arrival times are as good as exact, or absent.

        A clock is coarse where more than a tenth of the requests arrive at the very time of the one
        before and the other distances are multiples of one step, to within 2 % of it.
        """
        return 0.0 if self.arrival is None else _tick(self.arrival)

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
        return float("nan") if self.arrival is None else _scv(self.arrival)

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

    def window(self, length: float | int) -> float:
        """The window nearest to `length` that the clock resolves, s: a whole number of ticks."""
        if not self.tick:
            return float(length)
        return max(round(length / self.tick), 1) * self.tick

    def peak_rate(self, length: float | int = 60.0) -> float:
        """Highest arrival rate over any `window` of a length, 1/s.

        Windows are half-open and slide; the highest of all starts at an arrival, so that the
        answer is exact. Of a coarse clock only windows of whole ticks are known.

        Args:
          length: of a window, s.

        Returns:
          the rate; ``nan`` without arrival times or when the trace is shorter than the window.

        Raises:
          InputError: `length` is not a positive number.
        """
        window = self.window(check_positive(float(length), name="length"))
        if self.arrival is None or self.duration < window:
            return float("nan")
        # ticks jitter; times that are exact only suffer from rounding
        slack = 0.5 * self.tick or _ROUNDING * window
        ends = np.searchsorted(self.arrival, self.arrival + (window - slack))
        return float(np.max(ends - np.arange(len(self)))) / window

    def spread_arrivals(self) -> np.ndarray:
        """Arrival times for a replay, s from the first; empty when the trace brings no rate.

        Those of a coarse clock are spread over its ticks, independently and uniformly (always the
        same way): requests that share a tick did not come together.
        """
        if self.arrival is None or self.duration == 0:
            return np.empty(0)
        if not self.tick:
            return self.arrival
        times = self.arrival + self.tick * np.random.default_rng(0).random(len(self))
        times.sort()
        return times - times[0]

    def select(self, keep: np.ndarray) -> "Trace":
        """The requests where `keep` is true, as a trace of their own; at least one."""
        index = np.flatnonzero(keep)
        arrival = None if self.arrival is None else self.arrival[index] - self.arrival[index[0]]
        return dataclasses.replace(
            self,
            n_in=self.n_in[index],
            n_out=self.n_out[index],
            arrival=arrival,
            hash_ids=None if self.hash_ids is None else [self.hash_ids[i] for i in index],
        )


def _tick(arrival: np.ndarray) -> float:
    """Step of a coarse clock, s, or 0."""
    gaps = np.diff(arrival)
    steps = gaps[gaps > 0]
    if not len(steps) or len(steps) > (1 - _MANY_TIES) * len(gaps):
        return 0.0
    if steps.max() * _FINEST_CLOCK > steps.min():
        return 0.0
    counts = np.rint(steps / steps.min())
    tick = float(steps.sum() / counts.sum())
    return tick if np.all(np.abs(steps - counts * tick) <= _OFF_THE_GRID * tick) else 0.0


def _scv(arrival: np.ndarray) -> float:
    """Squared coefficient of variation of the times between arrivals; ``nan`` with too few."""
    if len(arrival) < 3 or arrival[-1] == arrival[0]:
        return float("nan")
    gaps = np.diff(arrival)
    return float(gaps.var() / gaps.mean() ** 2)


def trace_workload(trace: Trace, name: str | None = None) -> Workload:
    """The traffic of a trace.

    Args:
      trace: what was read.
      name: name of the workload; the file name when left out.

    Returns:
      observed pairs of lengths, rates, arrivals and their variability; those of a coarse clock
      after `Trace.spread_arrivals`. Without usable arrival times rates are ``nan``, arrivals are
      empty, `arrival_scv` and `dispersion` are 1. Of more than `MOST_PAIRS` requests, that many
      pairs are taken, evenly spaced in order of arrival.
    """
    pick = slice(None)
    if len(trace) > MOST_PAIRS:
        pick = np.arange(MOST_PAIRS) * len(trace) // MOST_PAIRS
    arrivals = trace.spread_arrivals()
    scv, dispersion = _scv(arrivals), trace.burstiness(60.0)
    return Workload(
        name=trace.name if name is None else name,
        lengths=JointLengths(n_in=trace.n_in[pick], n_out=trace.n_out[pick]),
        arrival_scv=1.0 if np.isnan(scv) else scv,
        dispersion=1.0 if np.isnan(dispersion) else dispersion,
        rate=trace.rate,
        peak_10s=_busiest(trace, arrivals, 10.0),
        peak_60s=_busiest(trace, arrivals, 60.0),
        arrivals=arrivals,
    )


def _busiest(trace: Trace, arrivals: np.ndarray, length: float) -> Peak | None:
    """The busiest window of about a length, and how irregular the arrivals inside it are."""
    rate = trace.peak_rate(length)
    if np.isnan(rate):
        return None
    window = trace.window(length)
    ends = np.searchsorted(arrivals, arrivals + window)
    start = int(np.argmax(ends - np.arange(len(arrivals))))
    scv = _scv(arrivals[start : ends[start]])
    return Peak(window=window, rate=rate, arrival_scv=1.0 if np.isnan(scv) else scv)


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
    ties, tick = np.count_nonzero(gaps == 0) / len(gaps), _tick(arrival)
    if tick:
        notes.append(
            f"{ties:.0%} of the requests arrive at the very time of the one before: the clock is "
            f"coarse, with a tick of {tick:.3g} s. Arrivals are spread over the tick at random, "
            "and windows are whole ticks."
        )
    elif ties > _MANY_TIES:
        notes.append(
            f"{ties:.0%} of the requests arrive at the very time of the one before, and the other "
            "times are those of no coarse clock: taken as batches."
        )
    if len(gaps) < 2:
        notes.append("Too few requests for a variability of arrivals; taken as Poisson.")
    return notes
