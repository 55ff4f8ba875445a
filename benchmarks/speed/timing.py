"""Time of a piece of work: the best of a few repetitions, by the wall and by the CPU."""

import dataclasses
import resource
import time
from collections.abc import Callable

import jax
import numpy as np

_SHORTEST = 0.15
_MOST = 200


@dataclasses.dataclass(frozen=True)
class Timed:
    """Seconds that one piece of work takes.

    Attributes:
      wall: least time by the wall clock.
      cpu: least time of all threads and child processes together.
      first: time by the wall clock of the first run, less `wall`: compilation.
    """

    wall: float
    cpu: float
    first: float


def timed(work: Callable[[], object], *, repeat: int = 5) -> Timed:
    """Times work that is warm after its first run.

    Work that is too short for the clock is done several times in each repetition. Other processes
    can only make a repetition longer, so the shortest is the one to believe.
    """
    first, _ = _once(work)
    once, _ = _once(work)
    inside = int(np.clip(np.ceil(_SHORTEST / max(once, 1e-9)), 1, _MOST))

    def several() -> None:
        for _ in range(inside):
            jax.block_until_ready(work())

    walls, cpus = zip(*(_once(several) for _ in range(repeat)), strict=True)
    wall = min(walls) / inside
    return Timed(wall=wall, cpu=min(cpus) / inside, first=max(first - wall, 0.0))


def _once(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    began, used = time.perf_counter(), _cpu()
    jax.block_until_ready(work())
    return time.perf_counter() - began, _cpu() - used


def _cpu() -> float:
    """CPU seconds of this process and of the children it has waited for."""
    usage = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in usage)
