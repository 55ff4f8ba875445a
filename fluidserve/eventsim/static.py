"""Static batching, which continuous batching replaced: a batch is served until all of it is done.

A baseline to measure what continuous batching gains (Yu et al., ORCA, OSDI 2022); no deployment
asks for it.
"""

import dataclasses
from typing import Any

import numpy as np

from fluidserve.eventsim import aggregated
from fluidserve.eventsim.records import Records
from fluidserve.eventsim.replicas import Lane, Piece
from fluidserve.eventsim.runs import checked_log
from fluidserve.eventsim.scheduler import Scheduler
from fluidserve.eventsim.sources import Stream
from fluidserve.timing.instance import AggregatedSystem
from fluidserve.timing.kv import tokens_held
from fluidserve.timing.model import Work


def run_static(
    system: AggregatedSystem,
    arrival: np.ndarray,
    n_in: np.ndarray,
    n_out: np.ndarray,
    *,
    record_gaps: bool = False,
    seed: int = 0,
) -> Records:
    """Serves every request as `fluidserve.eventsim.run` does, but with static batching.

    An idle instance takes the waiting requests in order of arrival, up to `max_batch` and as its
    memory allows, prefills them together and decodes until the last of them is done; only then it
    takes the next. It does not wait for a batch to fill up.

    A batch is a rectangle: every prompt is padded to the longest, and every request goes on unseen
    as long as the longest output. Iterations compute and attend to, and memory holds, that much. A
    request's own tokens leave when they are made.

    Args:
      system: the deployment; its prefill tokens, token budget and KV policy play no part.
      arrival: arrival times, s, sorted.
      n_in: prompt tokens, whole numbers.
      n_out: output tokens, whole numbers.
      record_gaps: also keep every time between two tokens.
      seed: of random dispatch.

    Raises:
      InputError: what `fluidserve.eventsim.run` raises.
    """
    log = checked_log(arrival, n_in, n_out)
    return aggregated.serve(
        system, log, Stream(log), record_gaps=record_gaps, seed=seed, scheduler=StaticBatching
    )


@dataclasses.dataclass
class _Rectangle:
    """A batch: requests, how many of them are not done, its longest prompt and output."""

    size: int = 0
    undone: int = 0
    n_in: int = 0
    n_out: int = 0


class StaticBatching(Scheduler):
    """A lane takes a batch, and the next one when all of it is done; see `run_static`."""

    def __init__(self, system: AggregatedSystem, *args: Any, **kwargs: Any):
        super().__init__(dataclasses.replace(system, kv_policy="reserve"), *args, **kwargs)
        self._batches: dict[int, _Rectangle] = {}

    def form(self, lane: Lane, now: float) -> Work | None:
        """Decode while there is a batch, otherwise the prefill of a new one."""
        lane.steps = lane.index in self._batches
        if lane.steps:
            return self._instance.decode_work(lane.count, lane.context, lane.windowed)
        batch = self._collect(lane, now)
        if not batch.size:
            return None
        self._batches[lane.index] = batch
        one = self._instance.prefill_work(batch.n_in, self._prefix_hit)
        lane.pieces = [Piece(r, batch.n_in - one.new, one.new) for r in lane.finishing]
        return Work(
            new=one.new * batch.size,
            attended=one.attended * batch.size,
            kv_read=one.kv_read * batch.size,
            sequences=float(batch.size),
            prompts=float(batch.size),
        )

    def join(self, lane: Lane, request: int, steps: int, now: float) -> None:
        """Takes a request into decode for as long as the longest output lasts."""
        batch = self._batches[lane.index]
        if batch.n_out > 1:
            lane.add(batch.n_in + 1, batch.n_out - 1)
        if not steps:
            self.depart(lane, request, now)

    def depart(self, lane: Lane, request: int, now: float) -> None:
        """Notes that a request is done; with the last of them, the batch leaves."""
        batch = self._batches[lane.index]
        batch.undone -= 1
        if not batch.undone:
            for _ in range(lane.count):
                lane.remove(batch.n_in + batch.n_out)
            lane.kv = 0.0
            lane.replica.requests -= batch.size
            del self._batches[lane.index]
        self.answer(request, now)

    def _collect(self, lane: Lane, now: float) -> _Rectangle:
        """Takes from the queue what fits into one batch."""
        batch, replica, log = _Rectangle(), lane.replica, self._log
        while replica.queue and replica.requests < self._max_batch:
            request = replica.queue[0]
            n_in = max(batch.n_in, log.n_in[request])
            n_out = max(batch.n_out, log.n_out[request])
            kv = (batch.size + 1) * tokens_held(self._instance.kv, n_in + n_out)
            if replica.kv - lane.kv + kv > self._capacity:
                replica.stalled.setdefault(request, now)
                break
            lane.finishing.append(self.take(replica, now))
            batch = _Rectangle(batch.size + 1, batch.size + 1, n_in, n_out)
            lane.kv = kv
        return batch
