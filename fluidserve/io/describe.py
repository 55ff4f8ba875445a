"""Models and accelerators as plain dictionaries, for tables and JSON."""

import dataclasses
import functools
import os
from collections.abc import Iterable
from typing import Any

from fluidserve.io.catalog import GPU_UNITS, find_gpu, gpu_sources
from fluidserve.specs.model import ModelSpec
from fluidserve.timing.profile import Profile, load_profile

_MODEL_FIELDS = (
    "name",
    "architecture",
    "parameters",
    "active_parameters",
    "weight_dtype",
    "weight_bytes",
    "compute_dtype",
    "kv_dtype",
    "kv_bytes_per_token",
    "window",
    "kv_window_bytes",
    "index_bytes_per_token",
    "sparse_tokens",
    "state_bytes",
    "layers",
    "attention",
    "hidden",
    "heads",
    "kv_heads",
    "head_dim",
    "intermediate",
    "vocab",
    "experts",
    "experts_per_token",
    "max_positions",
    "flop_per_token",
)


def describe_model(spec: ModelSpec) -> dict[str, Any]:
    """What serving needs to know of a model.

    Returns:
      names, sizes and counts under the names of `ModelSpec`; bytes, FLOP and counts are whole
      numbers where they are whole. ``attention_flop_per_pair`` is its ``attention_flop``;
      ``notes`` lists what is not counted or taken otherwise.
    """
    described = {field: _whole(getattr(spec, field)) for field in _MODEL_FIELDS}
    described["attention_flop_per_pair"] = _whole(spec.attention_flop)
    return described | {"notes": list(spec.notes)}


def describe_gpu(name: str, extra_files: Iterable[str | os.PathLike[str]] = ()) -> dict[str, Any]:
    """An accelerator with the value in SI, unit and source of every number.

    Args:
      name: name, alias or path, as in `find_gpu`.
      extra_files: a user's own files, as in `find_gpu`.

    Returns:
      ``name``; under ``numbers`` a dictionary by field of ``value``, ``unit`` and ``source``; and
      ``measured``, whether the profile `default` has constants that were fitted on it.

    Raises:
      InputError: as `find_gpu`.
    """
    files = list(extra_files)
    spec, sources = find_gpu(name, files), gpu_sources(name, files)
    values = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    return {
        "name": spec.name,
        "numbers": {
            key: {"value": _whole(values[key]), "unit": GPU_UNITS.get(key, "1"), "source": source}
            for key, source in sources.items()
        },
        "measured": _default_profile().measured(spec.name),
    }


@functools.cache
def _default_profile() -> Profile:
    return load_profile("default")


def _whole(value: Any) -> Any:
    """A float without a fraction as an int, so that counts print as counts."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
