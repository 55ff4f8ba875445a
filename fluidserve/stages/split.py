"""How a dispatch rule splits traffic over the instances of a pool."""

import jax.numpy as jnp

from fluidserve._typing import Leaf
from fluidserve.queueing.separate import thinned_scv, turns_scv
from fluidserve.specs.deployment import Dispatch


def scv_at_one(rule: Dispatch, arrival_scv: Leaf, instances: Leaf) -> Leaf:
    """Squared variability of the gaps between arrivals at one of the instances.

    Args:
      rule: ``random`` thins the stream and ``round-robin`` takes every n-th arrival; the other
        rules look at the instances, so that all of them meet the stream together.
      arrival_scv: of the whole stream.
      instances: how many share it.
    """
    if rule == "random":
        return thinned_scv(arrival_scv, instances)
    if rule == "round-robin":
        return turns_scv(arrival_scv, instances)
    return arrival_scv


def acting_together(rule: Dispatch, instances: Leaf) -> Leaf:
    """Decode instances that act as one: all under rules that look at them, else each alone."""
    return instances if rule in ("shared", "jsq") else jnp.ones_like(instances)
