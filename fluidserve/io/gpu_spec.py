"""An accelerator out of the numbers of a line, for hardware that the catalog does not have."""

import math
import re

from fluidserve.errors import InputError
from fluidserve.io.catalog import find_gpu
from fluidserve.io.names import normal_gpu_name
from fluidserve.specs.hardware import GpuSpec
from fluidserve.units import parse_quantity

_QUANTITIES = {
    "peak": "FLOP/s",
    "bandwidth": "B/s",
    "memory": "B",
    "link": "B/s",
    "peak8": "FLOP/s",
    "usable": "B",
    "network": "B/s",
}
_NEEDED = ("peak", "bandwidth", "memory", "link")
_KNOWN = (*_QUANTITIES, "gpus_per_node", "name")
_EXAMPLE = "'peak=989T, bandwidth=3.35TB/s, memory=80GB, link=450GB/s'"

NAME = "custom-GPU"
"""What an accelerator is called that was given no name."""
GPUS_PER_NODE = 8
NETWORK = 400e9 / 8
"""Network of a node where none is given: one adapter of 400 Gb/s, B/s."""
_LARGEST_NODE = 100_000
_MOST_USABLE = 1.1


def parse_gpu_spec(text: str) -> GpuSpec:
    """Reads an accelerator from ``key=value`` pairs with units, separated by commas.

    Four numbers are needed: ``peak`` (dense, 16 bits), ``bandwidth`` (memory), ``memory`` and
    ``link`` (to the other GPUs of the node, per GPU and direction). The others have defaults:
    ``peak8`` the peak, ``usable`` (bytes that the driver reports) the memory, ``gpus_per_node``
    8, ``network`` (of the node, one direction) 400 Gb/s, and ``name``.

    Raises:
      InputError: a key that is unknown, missing or given twice, a value without its unit or out
        of range, a name that the catalog has.

    Example:
      >>> gpu = parse_gpu_spec("peak=989T, bandwidth=3.35TB/s, memory=80GB, link=450GB/s")
      >>> gpu.name, gpu.flop_rate_16, gpu.scale_up_bandwidth
      ('custom-GPU', 989000000000000.0, 450000000000.0)
    """
    given = _pairs(text)
    for key in _NEEDED:
        if key not in given:
            raise InputError(f"--gpu-spec: {key!r} is missing; write for example {_EXAMPLE}")
    numbers = {
        key: parse_quantity(given[key], unit, name=f"--gpu-spec: {key}")
        for key, unit in _QUANTITIES.items()
        if key in given
    }
    usable = numbers.get("usable", numbers["memory"])
    if usable > _MOST_USABLE * numbers["memory"]:
        raise InputError(
            f"--gpu-spec: usable = {given['usable']} is more than the memory, {given['memory']}"
        )
    peak8 = numbers.get("peak8", numbers["peak"])
    if peak8 < numbers["peak"]:
        raise InputError(
            f"--gpu-spec: peak8 = {given['peak8']} is below peak = {given['peak']}; leave it out "
            "where the hardware has no faster 8-bit floats"
        )
    return GpuSpec(
        name=_name(given.get("name", NAME)),
        gpus_per_node=_count(given.get("gpus_per_node", str(GPUS_PER_NODE))),
        memory=numbers["memory"],
        usable_memory=usable,
        bandwidth=numbers["bandwidth"],
        flop_rate_16=numbers["peak"],
        flop_rate_8=peak8,
        scale_up_bandwidth=numbers["link"],
        scale_out_bandwidth=numbers.get("network", NETWORK),
    )


def _pairs(text: str) -> dict[str, str]:
    """The pairs by key."""
    given: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        key = key.lower().replace("-", "_")
        if not equals or not key or not value:
            raise InputError(
                f"--gpu-spec: {part.strip()!r} is not of the form key=value; write for example "
                f"{_EXAMPLE}"
            )
        if key not in _KNOWN:
            raise InputError(f"--gpu-spec: unknown key {key!r}; known: {', '.join(_KNOWN)}")
        if key in given:
            raise InputError(f"--gpu-spec: {key!r} is given twice")
        given[key] = value
    return given


def _count(text: str) -> int:
    number = float(text) if re.fullmatch(r"\d{1,9}(\.0*)?", text) else math.nan
    if not 1 <= number <= _LARGEST_NODE or not number.is_integer():
        raise InputError(
            f"--gpu-spec: gpus_per_node = {text!r} must be a whole number from 1 to "
            f"{_LARGEST_NODE:,}"
        )
    return int(number)


def _name(text: str) -> str:
    """A name that the catalog does not have, whose constants it must not take."""
    if not normal_gpu_name(text):
        raise InputError(f"--gpu-spec: name = {text!r} has no letters or digits")
    try:
        known = find_gpu(text).name
    except InputError:
        return " ".join(text.split())
    raise InputError(
        f"--gpu-spec: name = {text!r} is a GPU of the catalog; use --gpu {known}, or another name"
    )
