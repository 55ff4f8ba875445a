"""Who sends the requests of a run: a stream with known times, or users who wait for answers."""

from heapq import heappush
from typing import Protocol

import numpy as np

from fluidserve.eventsim.records import Log

ARRIVAL = 4
"""Rank of events at equal times, see `fluidserve.eventsim.disaggregated`."""


class Source(Protocol):
    """Sends the requests of a log in their order; `log.arrival` says when each one came."""

    def begin(self) -> None:
        """Schedules what comes before anything is answered."""
        ...

    def arrive(self, now: float) -> range:
        """The requests that come now, after an event of rank `ARRIVAL`."""
        ...

    def answered(self, now: float) -> None:
        """Hears that the last token of a request has left."""
        ...


class Stream:
    """Open loop: requests come at the times of the log, whatever happens to earlier ones."""

    def __init__(self, log: Log):
        self._log = log
        self._next = 0

    def begin(self) -> None:
        """Schedules the first request."""
        heappush(self._log.heap, (self._log.arrival[0], ARRIVAL, 0))

    def arrive(self, now: float) -> range:
        """All requests due now; schedules the one after them."""
        log, first, count = self._log, self._next, len(self._log.arrival)
        following = first
        while following < count and log.arrival[following] == now:
            following += 1
        if following < count:
            heappush(log.heap, (log.arrival[following], ARRIVAL, 0))
        self._next = following
        return range(first, following)

    def answered(self, now: float) -> None:
        """Nothing depends on answers."""


class Users:
    """Closed loop: each user sends a request, waits for its last token, and sends the next.

    Requests go out in the order of the log until none is left; their arrival times are written
    into it.
    """

    def __init__(self, log: Log, starts: np.ndarray):
        self._log = log
        self._starts: list[float] = starts.tolist()
        self._started = 0
        self._sent = 0
        self._due = 0

    def begin(self) -> None:
        """Schedules the first user."""
        heappush(self._log.heap, (self._starts[0], ARRIVAL, 0))

    def arrive(self, now: float) -> range:
        """One request of every user who starts or was answered now."""
        log, starts = self._log, self._starts
        while self._started < len(starts) and starts[self._started] == now:
            self._started += 1
            self._due += 1
            if self._started < len(starts) and starts[self._started] > now:
                heappush(log.heap, (starts[self._started], ARRIVAL, 0))
        first = self._sent
        self._sent = min(first + self._due, len(log.arrival))
        self._due = 0
        for request in range(first, self._sent):
            log.arrival[request] = now
        return range(first, self._sent)

    def answered(self, now: float) -> None:
        """Lets a user send the next request at once, together with others answered now."""
        if not self._due:
            heappush(self._log.heap, (now, ARRIVAL, 0))
        self._due += 1
