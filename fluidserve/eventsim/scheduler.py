"""What all schedulers of instances that do both phases have in common.

A scheduler is a subclass of `Scheduler` that says what the next iteration of a lane holds; the
rest is here: queues, memory, the way through the stages, first tokens, departures, preemption.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from heapq import heappush
from typing import NamedTuple

import numpy as np

from fluidserve.eventsim.dispatch import chooser, stream
from fluidserve.eventsim.records import Gaps, Log, gaps_of
from fluidserve.eventsim.replicas import Iteration, Lane, Replica
from fluidserve.timing.instance import AggregatedSystem
from fluidserve.timing.kv import tokens_held
from fluidserve.timing.model import Work

ITERATION_END = 0
LANE_START = 5
WAKE = 6
"""Ranks of events at equal times, see `fluidserve.eventsim.aggregated`."""


class _Stretch(NamedTuple):
    """Tokens of a request between two losses of its memory.

    Attributes:
      first: when the one that ends prefill left, s.
      lane: where it decoded.
      iteration: its first there.
      steps: how many.
    """

    first: float
    lane: int
    iteration: int
    steps: int


class Scheduler(ABC):
    """Identical instances, each with a queue of its own that nothing leaves but to be served.

    A request goes to an instance when it arrives. The head of its queue is admitted when a lane
    starts an iteration, has a place for prompts in it, fewer than `max_batch` requests are held
    and the memory has room: for all its tokens, or, where memory may be lost, for those that it
    has. In that case, when tokens outgrow the memory at the start of an iteration, the youngest
    request of the lane gives its KV up and goes back into the queue; later its prompt and the
    tokens it has made are computed as one prompt, which yields its next token.

    Attributes:
      busy_prompts: seconds that stages were busy with iterations that hold prompts, all together.
      busy_decode: the same with iterations that hold none.
      kv_time: KV held, integrated over iterations, token s.
    """

    def __init__(
        self,
        system: AggregatedSystem,
        log: Log,
        answered: Callable[[float], None],
        *,
        record_gaps: bool,
        seed: int,
        trace: list[Iteration] | None,
    ):
        n, instance = len(log.arrival), system.instance
        pp, replicas = int(instance.pp), int(system.replicas)
        self._log = log
        self._answered = answered
        self._instance = instance
        self._capacity = float(instance.kv_capacity)
        self._max_batch = float(system.max_batch)
        self._preempts = system.kv_policy == "preempt"
        self._prefix_hit = system.prefix_hit
        self._trace = trace
        self._replicas = [Replica(i, pp, instance.kv) for i in range(replicas)]
        self._lanes = [lane for replica in self._replicas for lane in replica.lanes]
        self._load = [0] * replicas
        self._instance_of = chooser(system.dispatch, self._load, n, stream(seed))
        self._made = [0] * n  # tokens at the last end of prefill
        self._joined = [0] * n  # decode iteration of the lane that followed it
        self._stretches: list[list[_Stretch]] | None = (
            [[] for _ in range(n)] if record_gaps else None
        )
        self.busy_prompts = 0.0
        self.busy_decode = 0.0
        self.kv_time = 0.0

    @abstractmethod
    def form(self, lane: Lane, now: float) -> Work | None:
        """Fills a lane's next iteration and says what it asks of a stage; None: nothing to do."""

    def arrive(self, request: int, now: float) -> None:
        """Sends a request to the queue of an instance."""
        index = self._instance_of(request)
        self._load[index] += 1
        self._log.prefill_instance[request] = self._log.decode_instance[request] = index
        replica = self._replicas[index]
        if not replica.queue:
            replica.unsettle()
        replica.queue.append(request)
        self._call(replica, now)

    def wake(self, index: int, now: float) -> None:
        """Lets the idle lanes of an instance take from its queue, as long as one finds work."""
        replica = self._replicas[index]
        replica.waking = False
        for lane in replica.lanes:
            if replica.queue and not lane.running:
                end = self._start(lane, now)
                if end is None:
                    return
                lane.running = True
                heappush(self._log.heap, (end, ITERATION_END, lane.index))

    def begin(self, index: int, now: float) -> None:
        """Starts an iteration of a lane that had one before, if there is anything to do."""
        lane = self._lanes[index]
        end = self._start(lane, now)
        if end is None:
            lane.running = False
        else:
            heappush(self._log.heap, (end, ITERATION_END, index))
        if lane.replica.queue:
            self._call(lane.replica, now)

    def iterate(self, index: int, now: float) -> None:
        """Ends the iteration of a lane and runs the next ones, while no other event is due.

        What leaves makes room that others may want, and users who are answered send at once; so
        then the next iteration starts by an event that comes after these.
        """
        lane, heap = self._lanes[index], self._log.heap
        while True:
            left = self._end(lane, now)
            if left or (heap and heap[0][0] <= now):
                heappush(heap, (now, LANE_START, index))
                return
            end = self._start(lane, now)
            if end is None:
                lane.running = False
                return
            if heap and heap[0][0] <= end:
                heappush(heap, (end, ITERATION_END, index))
                return
            now = end

    def gaps(self) -> Gaps | None:
        """Times between tokens, if they were asked for."""
        if self._stretches is None:
            return None
        ends = [np.array(lane.ends) for lane in self._lanes]
        tokens = []
        for parts in self._stretches:
            times = []
            for s in parts:
                times += [[s.first], ends[s.lane][s.iteration : s.iteration + s.steps]]
            tokens.append(np.concatenate(times))
        return gaps_of(tokens)

    def length(self, request: int) -> int:
        """Tokens that the prefill of a request computes: its prompt and what it has made."""
        return self._log.n_in[request] + self._made[request]

    def cached(self, request: int) -> float | None:
        """Those of them that the prefix cache holds; None without one."""
        if self._prefix_hit is None:
            return None
        n_in = self._log.n_in[request]
        return min(self._prefix_hit * n_in, n_in - 1.0)

    def head(self, replica: Replica, now: float) -> int | None:
        """The head of a queue, if it may be admitted."""
        if not replica.queue or replica.requests >= self._max_batch:
            return None
        request = replica.queue[0]
        if replica.kv + self._need(request) <= self._capacity:
            return request
        replica.stalled.setdefault(request, now)
        return None

    def admit(self, lane: Lane, now: float) -> None:
        """Moves the head of a queue to a lane, in whose next iteration its prefill begins."""
        request = self.take(lane.replica, now)
        need = self._need(request)
        lane.kv += need
        lane.prompt_kv += need
        if self._preempts:
            lane.members.add(request)

    def take(self, replica: Replica, now: float) -> int:
        """Takes the head of a queue and gives it a place in the batch."""
        log, request = self._log, replica.queue.popleft()
        replica.requests += 1
        if not log.preempted[request]:
            log.prefill_start[request] = max(now, replica.stages[0])
        since = replica.stalled.pop(request, None)
        if since is not None:
            log.memory_stall[request] += now - since
        return request

    def _call(self, replica: Replica, now: float) -> None:
        """Wakes an instance if a lane of it is idle, after all that happens now."""
        if not replica.waking and not all(lane.running for lane in replica.lanes):
            replica.waking = True
            heappush(self._log.heap, (now, WAKE, replica.index))

    def _need(self, request: int) -> float:
        """Room that a request needs to be admitted, tokens of all layers."""
        tokens = self._made[request] if self._preempts else self._log.n_out[request]
        return tokens_held(self._instance.kv, self._log.n_in[request] + tokens)

    def _start(self, lane: Lane, now: float) -> float | None:
        """Starts the next iteration of a lane; returns its end, s, or None if it holds nothing."""
        replica, instance = lane.replica, self._instance
        if self._preempts:
            while lane.members and replica.kv > self._capacity:
                self._preempt(lane)
        if lane.steady:
            work = instance.decode_work(lane.count, lane.context, lane.windowed)
        else:
            lane.pieces, lane.finishing = [], []
            work = self.form(lane, now)
            if work is None:
                return None
            lane.steady = not lane.pieces
        busy = instance.times.stage_time(work)
        stages = replica.stages
        begin = end = max(now, stages[0])
        for s, free in enumerate(stages):
            end = (free if free > end else end) + busy
            stages[s] = end
        lane.begin = begin
        if lane.pieces:
            self.busy_prompts += busy * len(stages)
        else:
            self.busy_decode += busy * len(stages)
        self.kv_time += lane.kv * (end - now)
        if lane.steps and lane.fresh:
            for request in lane.fresh:
                self._log.decode_start[request] = begin
        if self._trace is not None:
            decoding, context = (lane.count, lane.context) if lane.steps else (0, 0)
            pieces, requests, kv = tuple(lane.pieces), replica.requests, replica.kv
            self._trace.append(
                Iteration(lane.index, begin, end, decoding, context, pieces, requests, kv)
            )
        return end

    def _end(self, lane: Lane, now: float) -> bool:
        """Ends the iteration of a lane; says whether a request has left."""
        left = False
        if lane.steps:
            last = lane.iteration
            lane.advance()
            if self._stretches is not None:
                lane.ends.append(now)
            if lane.fresh:
                for request in lane.fresh:
                    self._log.first_step[request] = now
                lane.fresh = []
            if last in lane.leaving:
                left = True
                for request in lane.leaving.pop(last):
                    self.depart(lane, request, now)
        for request in lane.finishing:
            left |= self._first(lane, request, now)
        if self._preempts:
            partial = lane.partial
            lane.prompt_kv = 0.0 if partial is None else self._need(partial)
            lane.kv = lane.held(self._instance.kv) + lane.prompt_kv
        if left:
            lane.replica.unsettle()
        return left

    def _first(self, lane: Lane, request: int, now: float) -> bool:
        """Ends a prefill with a token; says whether it was the request's last."""
        log, made = self._log, self._made[request] + 1
        self._made[request] = made
        self._joined[request] = lane.iteration
        steps = log.n_out[request] - made
        if made == 1:
            log.first_token[request] = log.prefill_end[request] = now
            log.kv_start[request] = log.kv_end[request] = now
        elif made == 2:  # lost its memory before it could decode
            log.decode_start[request], log.first_step[request] = lane.begin, now
        if self._stretches is not None:
            self._stretches[request].append(_Stretch(now, lane.index, lane.iteration, steps))
        if made == 1 and steps:
            lane.fresh.append(request)
        elif made == 1:
            log.decode_start[request] = log.first_step[request] = now
        if steps:
            lane.leaving.setdefault(lane.iteration + steps - 1, []).append(request)
        self.join(lane, request, steps, now)
        return not steps

    def join(self, lane: Lane, request: int, steps: int, now: float) -> None:
        """Takes a request into decode, where it has `steps` tokens to make; 0: lets it go."""
        if steps:
            lane.add(self._log.n_in[request] + self._made[request], steps)
        else:
            self.release(lane, request)
            self.answer(request, now)

    def depart(self, lane: Lane, request: int, now: float) -> None:
        """Lets a request go that has made its last token in decode."""
        lane.remove(self._log.n_in[request] + self._log.n_out[request])
        self.release(lane, request)
        self.answer(request, now)

    def release(self, lane: Lane, request: int) -> None:
        """Frees a place in the batch and memory."""
        replica = lane.replica
        replica.requests -= 1
        if self._preempts:
            lane.members.discard(request)  # and its memory is counted afresh
        elif replica.requests:
            lane.kv -= self._need(request)
        else:
            for other in replica.lanes:
                other.kv = 0.0

    def answer(self, request: int, now: float) -> None:
        """Notes that the last token of a request has left."""
        log = self._log
        log.last_token[request] = now
        self._load[log.decode_instance[request]] -= 1
        self._answered(now)

    def _preempt(self, lane: Lane) -> None:
        """Takes memory and place from the youngest request of a lane and queues it again."""
        log, request = self._log, max(lane.members)
        lane.members.discard(request)
        if request == lane.partial:
            lane.partial, lane.prompt_kv = None, 0.0
        else:
            self._stop(lane, request)
        lane.kv = lane.held(self._instance.kv) + lane.prompt_kv
        log.preempted[request] += 1
        lane.replica.requests -= 1
        lane.replica.unsettle()
        lane.replica.put_back(request)

    def _stop(self, lane: Lane, request: int) -> None:
        """Takes a request out of decode before its last token."""
        log, joined = self._log, self._joined[request]
        left_at = joined + log.n_out[request] - self._made[request] - 1
        steps = lane.iteration - joined
        self._made[request] += steps
        lane.remove(self.length(request), log.n_out[request] - self._made[request])
        lane.leaving[left_at].remove(request)
        if not lane.leaving[left_at]:
            del lane.leaving[left_at]
        if request in lane.fresh:
            lane.fresh.remove(request)
        if self._stretches is not None:
            parts = self._stretches[request]
            parts[-1] = parts[-1]._replace(steps=steps)
