"""Which instance of a pool a request goes to."""

import itertools
from collections.abc import Callable

import numpy as np

from fluidserve.specs.deployment import Dispatch


def stream(seed: int) -> np.random.Generator:
    """Generator for random dispatch, independent of those for arrivals and lengths of a seed."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2,)))


def chooser(
    rule: Dispatch, load: list[int], requests: int, rng: np.random.Generator
) -> Callable[[int], int]:
    """The instance for a request, by its number.

    Random choices belong to the requests, so that a request keeps its instance at every rate.

    Args:
      rule: ``random`` draws, ``round-robin`` takes turns in the order of the calls, any other takes
        the instance with fewest requests, then the lowest index.
      load: requests at each instance; read at every call.
      requests: how many there are.
      rng: source of randomness, used only by ``random``.
    """
    if rule == "random":
        return rng.integers(len(load), size=requests).tolist().__getitem__
    if rule == "round-robin":
        turns = itertools.cycle(range(len(load)))
        return lambda _: next(turns)
    return lambda _: load.index(min(load))
