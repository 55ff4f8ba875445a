"""Prefill instances behind one first-come-first-served queue, or each behind its own."""

import math
from collections import deque
from heapq import heappush

import numpy as np

from fluidserve.eventsim.dispatch import chooser
from fluidserve.eventsim.records import Log
from fluidserve.specs.deployment import Dispatch
from fluidserve.timing.instance import Instance
from fluidserve.timing.kv import tokens_held
from fluidserve.timing.model import Work

PREFILL_END = 0
STAGE_FREE = 5
"""Ranks of events at equal times, see `fluidserve.eventsim.disaggregated`."""


class _Line:
    """A queue and the instances that it feeds."""

    __slots__ = ("instances", "stalled_since", "waiting")

    def __init__(self, instances: list[int]):
        self.instances = instances
        self.waiting: deque[int] = deque()
        self.stalled_since: float | None = None


class PrefillPool:
    """Identical instances that take prompts in the order of arrival.

    Under the rule ``shared`` all instances take from one queue; otherwise a prompt goes to the
    queue of one instance when it arrives, and stays there (``jsq``: to the instance with fewest
    prompts queued or computing, then to the lowest index).

    The head of a queue goes to an instance whose first stage is free and whose memory has room
    for its KV; among several, to the one idle longest, then to the lowest index. That instance
    also takes the next waiting prompts, up to `batch` with up to `tokens` computed, as long as the
    memory has room. A batch passes the stages in order; behind it the first stage is free for the
    next. KV is held until `release`.
    The share `prefix_hit` of every prompt is cached: its KV is read instead of computed, and takes
    its room like the rest.

    Attributes:
      busy: seconds that stages were busy, all together.
    """

    def __init__(
        self,
        log: Log,
        instance: Instance,
        *,
        replicas: int,
        batch: int,
        tokens: float | None,
        dispatch: Dispatch,
        rng: np.random.Generator,
        prefix_hit: float | None = None,
    ):
        self._log = log
        self._instance = instance
        self._capacity = float(instance.kv_capacity)
        self._batch = batch
        self._tokens = math.inf if tokens is None else tokens
        self._prefix_hit = prefix_hit
        self._stages = [[0.0] * int(instance.pp) for _ in range(replicas)]
        self._held = [0.0] * replicas
        everyone = list(range(replicas))
        lines = [everyone] if dispatch == "shared" else [[g] for g in everyone]
        self._lines = [_Line(instances) for instances in lines]
        self._load = [0] * len(lines)
        self._line_of = chooser(dispatch, self._load, len(log.arrival), rng)
        self._running: list[deque[list[int]]] = [deque() for _ in range(replicas)]
        self.busy = 0.0

    def arrive(self, request: int) -> None:
        """Puts a request at the end of a queue."""
        line = self._line_of(request)
        self._load[line] += 1
        self._lines[line].waiting.append(request)

    def start(self, now: float) -> None:
        """Starts whatever can start."""
        for line in self._lines:
            if line.waiting:
                self._start(line, now)

    def _start(self, line: _Line, now: float) -> None:
        """Starts prompts of a line until its head has to wait."""
        while line.waiting:
            need = self._need(line.waiting[0])
            idle = [g for g in line.instances if self._stages[g][0] <= now]
            room = [g for g in idle if self._held[g] + need <= self._capacity]
            if room:
                self._run(line, min(room, key=lambda g: self._stages[g][0]), now)
                continue
            if idle and line.stalled_since is None:
                line.stalled_since = now
            return

    def finish(self, instance: int) -> list[int]:
        """The batch that has just left the last stage of an instance."""
        batch = self._running[instance].popleft()
        self._load[instance if len(self._lines) > 1 else 0] -= len(batch)
        return batch

    def release(self, request: int) -> None:
        """Frees the KV of a request."""
        self._held[self._log.prefill_instance[request]] -= self._need(request)

    def _need(self, request: int) -> float:
        """Room that the KV of a prompt takes, tokens of all layers."""
        return tokens_held(self._instance.kv, self._log.n_in[request])

    def _run(self, line: _Line, instance: int, now: float) -> None:
        """Starts the head of a line, and what fits beside it, on an instance."""
        log, waiting = self._log, line.waiting
        if line.stalled_since is not None:
            log.memory_stall[waiting[0]] = now - line.stalled_since
            line.stalled_since = None
        batch, new, attended, kv_read = [], 0.0, 0.0, 0.0
        while waiting and len(batch) < self._batch:
            need = self._need(waiting[0])
            part = self._instance.prefill_work(log.n_in[waiting[0]], self._prefix_hit)
            if self._held[instance] + need > self._capacity:
                break
            if batch and new + part.new > self._tokens:
                break
            self._held[instance] += need
            new, attended, kv_read = (
                new + part.new,
                attended + part.attended,
                kv_read + part.kv_read,
            )
            batch.append(waiting.popleft())
        count = float(len(batch))
        work = Work(new=new, attended=attended, kv_read=kv_read, sequences=count, prompts=count)
        busy = self._instance.times.stage_time(work)
        stages, end = self._stages[instance], now
        for s, free in enumerate(stages):
            end = (free if free > end else end) + busy
            stages[s] = end
        self.busy += busy * len(stages)
        for request in batch:
            log.prefill_start[request] = now
            log.prefill_end[request] = end
            log.prefill_instance[request] = instance
        self._running[instance].append(batch)
        heappush(log.heap, (end, PREFILL_END, instance))
        heappush(log.heap, (stages[0], STAGE_FREE, instance))
