"""Requests that decode together, counted rather than listed."""

import math

from fluidserve.timing.kv import KvShape


class Batch:
    """What a decode step asks of the hardware, kept up to date at the same cost for any batch.

    All requests advance together, so one that joins knows in which iteration its context outgrows
    the window.

    Attributes:
      count: requests.
      context: sum of their contexts, tokens.
      windowed: sum of the same, each at most the window.
      iteration: number of the next step.
    """

    __slots__ = ("_filling", "_growing", "_window", "context", "count", "iteration", "windowed")

    def __init__(self, kv: KvShape | None):
        self._window = math.inf if kv is None else float(kv.window)
        self._growing = 0  # requests whose context is within the window
        self._filling: dict[int, int] = {}  # how many stop growing, by their last such iteration
        self.count = 0
        self.context = 0
        self.windowed = 0.0
        self.iteration = 0

    def add(self, context: int, steps: int) -> None:
        """Takes in a request with a context that will make `steps` tokens."""
        self._change(context, steps, 1)

    def remove(self, context: int, steps: int = 0) -> None:
        """Lets go a request with a context that would have made `steps` more tokens."""
        self._change(context, steps, -1)

    def advance(self) -> None:
        """Gives every request one token."""
        last = self.iteration
        self.iteration = last + 1
        self.context += self.count
        self.windowed += self._growing
        if self._filling:
            self._growing -= self._filling.pop(last, 0)

    def held(self, kv: KvShape | None) -> float:
        """KV that the requests hold, tokens of all layers."""
        if kv is None:
            return self.context
        return kv.held * self.context + (1.0 - kv.held) * self.windowed + kv.state * self.count

    def _change(self, context: int, steps: int, sign: int) -> None:
        """Counts a request in or out."""
        self.count += sign
        self.context += sign * context
        self.windowed += sign * min(context, self._window)
        left = self._window - context
        if left > 0:
            self._growing += sign
            if left <= steps:
                last = self.iteration + math.ceil(left) - 1
                self._filling[last] = self._filling.get(last, 0) + sign
