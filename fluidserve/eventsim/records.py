"""What a simulation leaves behind: one flat record per request, and how busy everything was."""

import dataclasses
from array import array

import numpy as np

from fluidserve.errors import InputError


@dataclasses.dataclass(frozen=True)
class Gaps:
    """Every time between two tokens of a request, all requests in one array.

    Attributes:
      values: gaps, s.
      offsets: gaps of request i are ``values[offsets[i]:offsets[i + 1]]``.
    """

    values: np.ndarray
    offsets: np.ndarray

    def of(self, index: int) -> np.ndarray:
        """Gaps of one request, s; ``n_out - 1`` of them."""
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def longest(self) -> np.ndarray:
        """Longest gap of each request that has any, s."""
        starts = self.offsets[:-1][np.diff(self.offsets) > 0]
        return np.maximum.reduceat(self.values, starts) if len(starts) else np.empty(0)


@dataclasses.dataclass(frozen=True)
class Utilisation:
    """Averages over the whole run, from the first arrival to the last event.

    Start-up and drain are in them, so a short run understates the load.

    Instances that do both phases are busy for the share `prefill` plus `decode` of the time; there
    is no link, and one memory, of which `decode_kv` says all.

    Attributes:
      horizon: length of that time, s.
      prefill: share of the time that a prefill stage is busy; of an instance that does both phases,
        that it is busy with iterations that hold prompt tokens.
      link: share of the time that the link is busy.
      decode: share of the time that a decode stage is busy; of an instance that does both phases,
        that it is busy with iterations that hold no prompt tokens.
      decode_batch: requests in decode iterations, per decode instance; of an instance that does
        both phases, those between their first and last tokens.
      prefill_kv: share of the prefill instances' KV room that is held.
      decode_kv: share of the decode instances' KV room that is reserved.
    """

    horizon: float
    prefill: float
    link: float
    decode: float
    decode_batch: float
    prefill_kv: float
    decode_kv: float


@dataclasses.dataclass(frozen=True)
class Records:
    """Requests in the order of their arrival; times in s on the simulation's clock.

    A request whose only token leaves at the end of prefill is never handed over: its `kv_start`,
    `kv_end`, `decode_start` and `first_step` equal its `prefill_end`, and its `decode_instance` is
    -1.

    Where one instance does both phases, it is both the `prefill_instance` and the
    `decode_instance`, and the KV has nowhere to go: `kv_start` and `kv_end` equal `prefill_end`. A
    request that loses its KV is computed anew; its records are those of the first time, except
    that a second token may come from that prefill: then `decode_start` and `first_step` are its.

    Attributes:
      id: position in the input.
      arrival: the request enters the prefill queue.
      prefill_start: its first stage begins; of a prompt in pieces, with the first of them.
      prefill_end: its last stage ends; of a prompt in pieces, with the last of them.
      kv_start: a decode instance admits it, and the pull of its KV joins the link's queue.
      kv_end: its KV has arrived; prefill memory is free again.
      decode_start: the first stage begins its first decode iteration.
      first_step: that iteration ends.
      first_token: first output token leaves.
      last_token: last output token leaves.
      n_in: prompt tokens.
      n_out: output tokens.
      prefill_instance: which instance computed the prompt.
      decode_instance: which instance made the other tokens.
      memory_stall: how long it waited at the head of the prefill queue while an instance was idle
        but had no room for its KV, s; where one instance does both phases, since a lane would have
        taken it but for the room.
      preempted: how often it lost its KV and was computed anew.
      utilisation: averages over the run.
      gaps: times between tokens, when they were asked for.
    """

    id: np.ndarray
    arrival: np.ndarray
    prefill_start: np.ndarray
    prefill_end: np.ndarray
    kv_start: np.ndarray
    kv_end: np.ndarray
    decode_start: np.ndarray
    first_step: np.ndarray
    first_token: np.ndarray
    last_token: np.ndarray
    n_in: np.ndarray
    n_out: np.ndarray
    prefill_instance: np.ndarray
    decode_instance: np.ndarray
    memory_stall: np.ndarray
    preempted: np.ndarray
    utilisation: Utilisation
    gaps: Gaps | None = None

    def __len__(self) -> int:
        return len(self.id)

    @property
    def ttft(self) -> np.ndarray:
        """Arrival to first token, s."""
        return self.first_token - self.arrival

    def phases(self) -> dict[str, float]:
        """Mean time spent in each phase between arrival and last token, s.

        ``queue`` before prefill, ``prefill``, ``handover`` until the KV is in the decode instance
        (wait for a slot included), ``first_step`` until the first decode iteration ends, and the
        rest of ``decode``.
        """
        marks = {
            "queue": self.prefill_start,
            "prefill": self.prefill_end,
            "handover": self.kv_end,
            "first_step": self.first_step,
            "decode": self.last_token,
        }
        before = [self.arrival, *marks.values()]
        ends = zip(marks.items(), before, strict=False)
        return {name: float((end - start).mean()) for (name, end), start in ends}

    @property
    def tpot(self) -> np.ndarray:
        """Mean time per token after the first, s; 0 where the first is the only one."""
        return (self.last_token - self.first_token) / np.maximum(self.n_out - 1, 1)

    @property
    def e2e(self) -> np.ndarray:
        """Arrival to last token, s."""
        return self.last_token - self.arrival

    def select(self, start: int, stop: int) -> "Records":
        """The requests ``start <= i < stop`` in the order of arrival; `utilisation` stays."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        kept = {k: v[start:stop] for k, v in fields.items() if isinstance(v, np.ndarray)}
        gaps = self.gaps
        if gaps is not None:
            offsets = gaps.offsets[start : stop + 1]
            values = gaps.values[offsets[0] : offsets[-1]]
            gaps = Gaps(values=values, offsets=offsets - offsets[0])
        return dataclasses.replace(self, gaps=gaps, **kept)

    def window(self, *, warmup: float = 0.1, tail: float = 0.05) -> "Records":
        """The requests that metrics are made of.

        The first ones meet a system that is emptier than usual, and the last ones decode while
        nothing arrives behind them.

        Args:
          warmup: share of the requests left out at the start.
          tail: share left out at the end.

        Raises:
          InputError: nothing would be left.
        """
        start, stop = round(warmup * len(self)), len(self) - round(tail * len(self))
        if not 0 <= start < stop <= len(self):
            raise InputError(
                f"window: warmup={warmup} and tail={tail} leave nothing of {len(self)} requests; "
                "take shares that add up to less than 1"
            )
        return self.select(start, stop)


class Log:
    """The record of a run in progress: plain lists, which are faster to fill than arrays.

    Attributes:
      arrival: arrival times, s, sorted.
      n_in: prompt tokens.
      n_out: output tokens.
      heap: pending events as (time, rank, item).
    """

    def __init__(self, arrival: np.ndarray, n_in: np.ndarray, n_out: np.ndarray):
        n = len(arrival)
        self.arrival: list[float] = arrival.tolist()
        self.n_in: list[int] = n_in.tolist()
        self.n_out: list[int] = n_out.tolist()
        self.heap: list[tuple[float, int, int]] = []
        self.prefill_start, self.prefill_end = [0.0] * n, [0.0] * n
        self.kv_start, self.kv_end = [0.0] * n, [0.0] * n
        self.decode_start, self.first_step, self.first_token = [0.0] * n, [0.0] * n, [0.0] * n
        self.last_token, self.memory_stall = [0.0] * n, [0.0] * n
        self.prefill_instance, self.decode_instance = [-1] * n, [-1] * n
        self.preempted = [0] * n

    def records(self, utilisation: Utilisation, gaps: Gaps | None) -> Records:
        """The finished record."""
        whole = {"n_in", "n_out", "prefill_instance", "decode_instance", "preempted"}
        names = {f.name for f in dataclasses.fields(Records)} - {"id", "utilisation", "gaps"}
        columns = {
            name: np.array(getattr(self, name), np.int64 if name in whole else np.float64)
            for name in names
        }
        ids = np.arange(len(self.arrival))
        return Records(id=ids, utilisation=utilisation, gaps=gaps, **columns)


def collect_gaps(
    log: Log, times: list[array], joined: list[tuple[int, int]], *, from_prefill: bool
) -> Gaps:
    """Gaps of every request out of the end times of the lanes' iterations.

    Args:
      log: the finished log.
      times: per lane, when each of its iterations ended, s.
      joined: per request, its lane and its first iteration there.
      from_prefill: whether the first token comes from prefill rather than from an iteration.
    """
    ends = [np.frombuffer(t, np.float64) if len(t) else np.empty(0) for t in times]
    tokens = []
    for request, (lane, first) in enumerate(joined):
        before = [log.first_token[request]] if from_prefill else []
        steps = log.n_out[request] - from_prefill
        tokens.append(np.concatenate([before, ends[lane][first : first + steps]]))
    return gaps_of(tokens)


def gaps_of(tokens: list[np.ndarray]) -> Gaps:
    """Gaps of requests out of the times, s, at which the tokens of each left."""
    parts = [np.diff(times) for times in tokens]
    offsets = np.concatenate([[0], np.cumsum([len(p) for p in parts])]).astype(np.int64)
    return Gaps(values=np.concatenate(parts), offsets=offsets)
