"""Continuous batching: what the next iteration holds is decided anew every time."""

from typing import Any

from fluidserve.eventsim.replicas import Lane, Piece
from fluidserve.eventsim.scheduler import Scheduler
from fluidserve.timing.instance import AggregatedSystem
from fluidserve.timing.model import Work

_NO_TOKENS = 1e-9
"""Less than that of a prompt is a rounding error (a cached share need not be whole tokens)."""


class PrefillFirst(Scheduler):
    """An iteration is either prompts, which go first, or one token for every decoding request.

    Prompts are taken in order of arrival, together up to `prefill_tokens` tokens that are computed;
    a longer one is computed by itself. The scheduler of ORCA (Yu et al., OSDI 2022) as the first
    vLLM had it (Kwon et al., SOSP 2023).
    """

    def __init__(self, system: AggregatedSystem, *args: Any, **kwargs: Any):
        super().__init__(system, *args, **kwargs)
        self._tokens = float(system.prefill_tokens)

    def form(self, lane: Lane, now: float) -> Work | None:
        """Prompts if the head of the queue may be admitted, otherwise decode."""
        work = None
        while (request := self.head(lane.replica, now)) is not None:
            part = self._prompt(request)
            if work is not None and work.new + part.new > self._tokens:
                break
            before = self.length(request) - part.new
            lane.pieces.append(Piece(request, before, part.new))
            lane.finishing.append(request)
            self.admit(lane, now)
            work = part if work is None else work + part
        lane.steps = work is None
        if work is None and lane.count:
            work = self._instance.decode_work(lane.count, lane.context, lane.windowed)
        return work

    def _prompt(self, request: int) -> Work:
        """The prefill of a request, and of what it had made before it lost its memory."""
        tokens, cached = self.length(request), self.cached(request)
        if cached is None:
            return self._instance.prefill_work(tokens)
        return self._instance.chunk_work(cached, tokens - cached)


class ChunkedPrefill(Scheduler):
    """An iteration is one token for every decoding request, and pieces of prompts beside them.

    Pieces fill what the decode tokens leave of the budget, in order of arrival; a prompt is split
    where the budget ends and goes on with the next iteration. Decode has no limit but the batch.
    The scheduler of Sarathi-Serve (Agrawal et al., OSDI 2024).
    """

    def __init__(self, system: AggregatedSystem, *args: Any, **kwargs: Any):
        super().__init__(system, *args, **kwargs)
        assert system.token_budget is not None
        self._budget = float(system.token_budget)
        self._done = [0.0] * len(self._log.arrival)

    def form(self, lane: Lane, now: float) -> Work | None:
        """Decode and as many prompt tokens as fit beside it."""
        work = None
        lane.steps = lane.count > 0
        if lane.steps:
            work = self._instance.decode_work(lane.count, lane.context, lane.windowed)
        left = self._budget - lane.count
        while left > _NO_TOKENS:
            request = self._prompt(lane, now)
            if request is None:
                break
            before = self._done[request]
            new = self.length(request) - before
            if new <= left + _NO_TOKENS:
                lane.finishing.append(request)
                lane.partial = None
            else:
                new = left
                self._done[request] = before + new
            left -= new
            lane.pieces.append(Piece(request, before, new))
            part = self._instance.chunk_work(before, new)
            work = part if work is None else work + part
        return work

    def _prompt(self, lane: Lane, now: float) -> int | None:
        """The prompt that goes on, or else the head of the queue, if it may be admitted."""
        if lane.partial is None:
            request = self.head(lane.replica, now)
            if request is not None:
                self.admit(lane, now)
                self._done[request] = self.cached(request) or 0.0
                lane.partial = request
        return lane.partial
