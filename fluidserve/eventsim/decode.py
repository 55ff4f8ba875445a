"""Decode instances with continuous batching: every iteration gives each request one token."""

from array import array
from collections import deque
from collections.abc import Callable
from heapq import heappush

import numpy as np

from fluidserve.eventsim.batch import Batch
from fluidserve.eventsim.dispatch import chooser
from fluidserve.eventsim.records import Log
from fluidserve.specs.deployment import Dispatch
from fluidserve.timing.instance import Instance
from fluidserve.timing.kv import KvShape, tokens_held

ITERATION_END = 2
LANE_START = 3
"""Ranks of events at equal times, see `fluidserve.eventsim.disaggregated`."""


class _Lane(Batch):
    """A micro-batch that passes the stages of its instance, then starts over.

    A request that joins knows the iteration in which it leaves.
    """

    __slots__ = ("ends", "fresh", "index", "instance", "joining", "leaving", "running", "size")

    def __init__(self, index: int, instance: int, kv: KvShape | None):
        super().__init__(kv)
        self.index = index
        self.instance = instance
        self.size = 0  # those decoding and those about to join
        self.running = False
        self.joining: list[int] = []
        self.fresh: list[int] = []  # in their first iteration
        self.leaving: dict[int, list[int]] = {}  # by the iteration that is their last
        self.ends = array("d")


class DecodePool:
    """Identical instances; a request goes to one of them at the end of its prefill.

    Under the rules ``shared`` and ``jsq`` to the one with fewest requests (queued, in transfer and
    decoding), then to the lowest index. Each instance admits its
    own queue in order while it holds fewer than `max_batch` requests and has room for all tokens
    that the head will ever need; nothing is preempted. An instance has as many lanes as stages; a
    request joins the lane with fewest (then the lowest index) when that lane's iteration ends, at
    once if it is idle.

    Attributes:
      busy: seconds that stages were busy, all together.
      joined: per request, its lane and its first iteration there.
    """

    def __init__(
        self,
        log: Log,
        instance: Instance,
        *,
        replicas: int,
        max_batch: float,
        first_from_prefill: bool,
        pull: Callable[[int, float], None],
        answered: Callable[[float], None],
        record_gaps: bool,
        dispatch: Dispatch,
        rng: np.random.Generator,
    ):
        pp = int(instance.pp)
        self._log = log
        self._instance = instance
        self._capacity = float(instance.kv_capacity)
        self._max_batch = max_batch
        self._tokens_before = int(first_from_prefill)
        self._pull = pull
        self._answered = answered
        self._record_gaps = record_gaps
        self._stages = [[0.0] * pp for _ in range(replicas)]
        self._lanes = [_Lane(i, i // pp, instance.kv) for i in range(replicas * pp)]
        self._lanes_of = [self._lanes[i * pp : (i + 1) * pp] for i in range(replicas)]
        self._queues: list[deque[int]] = [deque() for _ in range(replicas)]
        self._load = [0] * replicas
        self._instance_of = chooser(dispatch, self._load, len(log.arrival), rng)
        self._admitted = [0] * replicas
        self._reserved = [0.0] * replicas
        self.busy = 0.0
        self.joined = [(0, 0)] * len(log.arrival)

    @property
    def iteration_ends(self) -> list[array]:
        """Per lane, when its iterations ended, s; empty unless gaps are recorded."""
        return [lane.ends for lane in self._lanes]

    def dispatch(self, request: int, now: float) -> None:
        """Sends a request to the queue of an instance."""
        instance = self._instance_of(request)
        self._load[instance] += 1
        self._log.decode_instance[request] = instance
        self._queues[instance].append(request)
        self._admit(instance, now)

    def join(self, request: int, now: float) -> None:
        """Takes in a request whose KV has arrived."""
        lane = min(self._lanes_of[self._log.decode_instance[request]], key=lambda x: x.size)
        lane.joining.append(request)
        lane.size += 1
        if not lane.running:
            lane.running = True
            heappush(self._log.heap, (now, LANE_START, lane.index))

    def begin(self, index: int, now: float) -> None:
        """Starts an iteration of a lane, unless it has become empty."""
        lane = self._lanes[index]
        self._take_in(lane, now)
        if lane.count:
            heappush(self._log.heap, (self._run(lane, now), ITERATION_END, index))
        else:
            lane.running = False

    def iterate(self, index: int, now: float) -> None:
        """Ends the iteration of a lane and runs the next ones, while no other event is due.

        When requests leave, others may be admitted and may even join this lane at once, so the
        next iteration starts by an event that comes after all of these.
        """
        lane, heap = self._lanes[index], self._log.heap
        while True:
            last = lane.iteration
            lane.advance()
            if self._record_gaps:
                lane.ends.append(now)
            if lane.fresh:
                self._note_first_tokens(lane, now)
            if last in lane.leaving:
                self._complete(lane, lane.leaving.pop(last), now)
                heappush(heap, (now, LANE_START, index))
                return
            if lane.joining:
                self._take_in(lane, now)
            end = self._run(lane, now)
            if heap and heap[0][0] <= end:
                heappush(heap, (end, ITERATION_END, index))
                return
            now = end

    def _run(self, lane: _Lane, now: float) -> float:
        """Passes the batch through the stages; returns when the last one ends, s."""
        instance = self._instance
        work = instance.decode_work(lane.count, lane.context, lane.windowed)
        busy = instance.times.stage_time(work)
        stages, end = self._stages[lane.instance], now
        for s, free in enumerate(stages):
            end = (free if free > end else end) + busy
            stages[s] = end
        self.busy += busy * len(stages)
        return end

    def _take_in(self, lane: _Lane, now: float) -> None:
        """Adds the requests that wait for the lane's next iteration."""
        log = self._log
        begin = max(now, self._stages[lane.instance][0])
        for request in lane.joining:
            steps = log.n_out[request] - self._tokens_before
            lane.leaving.setdefault(lane.iteration + steps - 1, []).append(request)
            lane.add(log.n_in[request] + self._tokens_before, steps)
            log.decode_start[request] = begin
            self.joined[request] = (lane.index, lane.iteration)
        lane.fresh, lane.joining = lane.joining, []

    def _note_first_tokens(self, lane: _Lane, now: float) -> None:
        """Ends the first iteration of a lane's newcomers."""
        for request in lane.fresh:
            self._log.first_step[request] = now
            if not self._tokens_before:
                self._log.first_token[request] = now
        lane.fresh = []

    def _complete(self, lane: _Lane, requests: list[int], now: float) -> None:
        """Lets requests go and gives their room to those in the queue."""
        log, instance = self._log, lane.instance
        for request in requests:
            tokens = log.n_in[request] + log.n_out[request]
            log.last_token[request] = now
            lane.remove(tokens)
            self._reserved[instance] -= tokens_held(self._instance.kv, tokens)
            self._answered(now)
        gone = len(requests)
        lane.size -= gone
        self._load[instance] -= gone
        self._admitted[instance] -= gone
        self._admit(instance, now)

    def _admit(self, instance: int, now: float) -> None:
        """Admits the head of a queue as long as a slot and room for all its tokens are free."""
        queue, log = self._queues[instance], self._log
        while queue and self._admitted[instance] < self._max_batch:
            tokens = log.n_in[queue[0]] + log.n_out[queue[0]]
            need = tokens_held(self._instance.kv, tokens)
            if self._reserved[instance] + need > self._capacity:
                return
            self._admitted[instance] += 1
            self._reserved[instance] += need
            self._pull(queue.popleft(), now)
