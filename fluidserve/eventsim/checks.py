"""What any system must be like to be simulated: one, with whole numbers of instances and room."""

from collections.abc import Mapping
from typing import TypeVar

import jax

from fluidserve.errors import InputError
from fluidserve.timing.instance import AggregatedSystem, Instance, System
from fluidserve.timing.kv import tokens_held

_System = TypeVar("_System", System, AggregatedSystem)


def plain(system: _System) -> _System:
    """The system with Python floats for leaves, so that no event touches an array library.

    Raises:
      InputError: a batch of systems.
    """
    try:
        return jax.tree.map(float, system)
    except TypeError:
        raise InputError("system: the simulator takes one system, not a batch of them") from None


def check_counts(counts: Mapping[str, float]) -> None:
    """Refuses numbers, by the names of the system's fields, that are not whole and positive."""
    for name, value in counts.items():
        if value < 1 or value != int(value):
            raise InputError(f"system.{name} = {value} must be a whole number of at least 1")


def check_limits(limits: Mapping[str, float | None]) -> None:
    """Refuses limits, by the names of the system's fields, below 1; None is no limit."""
    for name, value in limits.items():
        if value is not None and not value >= 1:
            raise InputError(f"system.{name} = {value} must be at least 1")


def check_room(instance: Instance, tokens: int, name: str) -> None:
    """Refuses requests of so many tokens that an instance, of that name, has no room for."""
    room, need = instance.kv_capacity, tokens_held(instance.kv, tokens)
    if need > room:
        raise InputError(
            f"{name}.kv_capacity = {room:g} tokens is less than the {need:g} tokens that one "
            "request needs; use more memory per instance or shorter requests"
        )
