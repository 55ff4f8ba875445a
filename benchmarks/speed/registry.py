"""The measurements by name, and the rows that they give."""

import dataclasses
from collections.abc import Callable, Iterable

from benchmarks.speed.timing import Timed


@dataclasses.dataclass(frozen=True)
class Throughput:
    """So many things of a kind in a time.

    Attributes:
      what: the thing and the case.
      count: how many.
      time: in which time.
      aim: wanted per second of the machine; None for no aim.
    """

    what: str
    count: float
    time: Timed
    aim: float | None = None


@dataclasses.dataclass(frozen=True)
class Finding:
    """Any other number, already in words."""

    what: str
    value: str


Row = Throughput | Finding
Measurement = Callable[[], Iterable[Row]]
MEASUREMENTS: dict[str, Measurement] = {}


def measurement(name: str) -> Callable[[Measurement], Measurement]:
    """Registers a measurement, in the order of the tables."""

    def register(function: Measurement) -> Measurement:
        MEASUREMENTS[name] = function
        return function

    return register
