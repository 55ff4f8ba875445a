"""Models and accelerators by name, from the shipped catalog or from a user's file."""

import dataclasses
import functools
import os
import tomllib
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from fluidserve.errors import InputError
from fluidserve.io.hf_config import read_model
from fluidserve.io.hub import fetch_config, is_repository
from fluidserve.io.names import joined, normal_gpu_name, normal_model_name, suggestion
from fluidserve.specs.hardware import GpuSpec
from fluidserve.specs.model import ModelSpec
from fluidserve.units import parse_quantity

GPU_UNITS: dict[str, str] = {
    "memory": "B",
    "usable_memory": "B",
    "bandwidth": "B/s",
    "flop_rate_16": "FLOP/s",
    "flop_rate_8": "FLOP/s",
    "scale_up_bandwidth": "B/s",
    "scale_out_bandwidth": "B/s",
}
"""The numbers of an accelerator's file and their units; it also has ``gpus_per_node``, a count."""

_LARGEST_NODE = 100_000


@dataclasses.dataclass(frozen=True)
class _Model:
    """A catalog entry: the fields of a config and where it is published."""

    name: str
    aliases: tuple[str, ...]
    source: str
    config: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class _Gpu:
    """An accelerator with the source of each of its numbers."""

    spec: GpuSpec
    aliases: tuple[str, ...]
    sources: dict[str, str]


def model_names() -> list[str]:
    """Names of the models in the catalog, families together."""
    return [model.name for model in _models()]


def find_model(
    name_or_path: str | os.PathLike[str],
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
) -> ModelSpec:
    """Reads a model: an existing file or directory as its config, else a name of the catalog.

    An ``org/name`` that is neither is fetched from Hugging Face, where `huggingface_hub` is
    installed.

    Names are looked up regardless of case, of ``_``, ``-`` and spaces, of a leading ``org/`` and of
    a trailing ``-Instruct``, ``-hf`` or ``-chat``.

    Args:
      name_or_path: a path, a name or an alias.
      weight_dtype: format of the weights, as in `read_model`.
      kv_dtype: format of the KV cache, as in `read_model`.

    Raises:
      InputError: neither a path nor a known name (close ones are suggested), or a config that
        cannot be read.

    Example:
      >>> find_model("facebook/opt-13b").kv_bytes_per_token / 2**10
      800.0
    """
    text = os.fspath(name_or_path)
    if _exists(text) or text.endswith(".json"):
        return read_model(text, weight_dtype=weight_dtype, kv_dtype=kv_dtype)
    if is_repository(text) and joined(normal_model_name(text)) not in _model_index():
        path = fetch_config(text, suggestion(normal_model_name(text), model_names()))
        name = text.rpartition("/")[2]
        return read_model(path, name=name, weight_dtype=weight_dtype, kv_dtype=kv_dtype)
    model = _model(text)
    return read_model(model.config, name=model.name, weight_dtype=weight_dtype, kv_dtype=kv_dtype)


def model_source(name: str) -> str:
    """Where the config of a catalog model is published."""
    return _model(name).source


def gpu_names() -> list[str]:
    """Names of the accelerators in the catalog."""
    return [gpu.spec.name for gpu in _gpus()]


def find_gpu(name: str, extra_files: Iterable[str | os.PathLike[str]] = ()) -> GpuSpec:
    """Reads an accelerator: a TOML file by its path, else by name from `extra_files` or catalog.

    Args:
      name: a path ending in ``.toml``, a name or an alias, regardless of case, of ``_``, ``-`` and
        spaces, and of a leading vendor.
      extra_files: a user's own files, of the same form as the catalog's; they go before it.

    Raises:
      InputError: no such file or name (close ones are suggested), or a file that cannot be read.

    Example:
      >>> gpu = find_gpu("a100")
      >>> gpu.name, round(float(gpu.flop_rate_16 / gpu.bandwidth))
      ('A100-SXM4-80GB', 153)
    """
    return _gpu(name, extra_files).spec


def gpu_sources(name: str, extra_files: Iterable[str | os.PathLike[str]] = ()) -> dict[str, str]:
    """Where each number of an accelerator comes from, by the fields of `GpuSpec`."""
    return dict(_gpu(name, extra_files).sources)


def _exists(path: str) -> bool:
    try:
        return bool(path) and Path(path).exists()
    except (OSError, ValueError):  # a name too long for the file system, a null character
        return False


def _shipped(folder: str) -> list[tuple[str, dict[str, Any]]]:
    """The TOML files of a folder of the catalog, in the order of their names."""
    files = (resources.files("fluidserve.specs.catalog") / folder).iterdir()
    return [
        (f.name, tomllib.loads(f.read_text(encoding="utf-8")))
        for f in sorted(files, key=lambda f: f.name)
        if f.name.endswith(".toml")
    ]


@functools.cache
def _models() -> tuple[_Model, ...]:
    return tuple(
        _Model(entry["name"], tuple(entry["aliases"]), entry["source"], entry["config"])
        for _, table in _shipped("models")
        for entry in table["models"]
    )


@functools.cache
def _model_index() -> dict[str, _Model]:
    return {
        joined(normal_model_name(name)): model
        for model in _models()
        for name in (model.name, *model.aliases)
    }


def _model(name: str) -> _Model:
    wanted = normal_model_name(name)
    found = _model_index().get(joined(wanted))
    if found is None:
        raise InputError(
            f"model {name!r} is neither a file nor in the catalog; "
            + suggestion(wanted, model_names())
        )
    return found


@functools.cache
def _gpus() -> tuple[_Gpu, ...]:
    return tuple(_build_gpu(table, where=file) for file, table in _shipped("gpus"))


def _gpu(name: str, extra_files: Iterable[str | os.PathLike[str]]) -> _Gpu:
    extra = [_read_gpu(Path(file)) for file in extra_files]
    if name.lower().endswith(".toml"):
        return _read_gpu(Path(name))
    known = [*_gpus(), *extra]
    index = {
        joined(normal_gpu_name(n)): gpu for gpu in known for n in (gpu.spec.name, *gpu.aliases)
    }
    wanted = normal_gpu_name(name)
    if joined(wanted) not in index:
        raise InputError(
            f"gpu {name!r} is neither a .toml file nor in the catalog; "
            + suggestion(wanted, [gpu.spec.name for gpu in known])
        )
    return index[joined(wanted)]


def _read_gpu(path: Path) -> _Gpu:
    """Reads a user's file."""
    try:
        table = tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise InputError(f"gpu {path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"gpu {path}: is not a TOML file ({error})") from None
    return _build_gpu(table, where=str(path))


def _build_gpu(table: dict[str, Any], *, where: str) -> _Gpu:
    known = ["name", "aliases", "gpus_per_node", *GPU_UNITS]
    if unknown := sorted(table.keys() - set(known)):
        raise InputError(f"gpu {where}: unknown key {unknown[0]!r}; known: {', '.join(known)}")
    for key in known:
        if key not in table and key != "aliases":
            raise InputError(f"gpu {where}: {key!r} is missing")
    name, aliases = table["name"], table.get("aliases", [])
    if not isinstance(name, str) or not normal_gpu_name(name):
        raise InputError(f"gpu {where}: name is {name!r}; it must be text")
    if not isinstance(aliases, list) or not all(isinstance(a, str) for a in aliases):
        raise InputError(f"gpu {where}: aliases is {aliases!r}; it must be a list of names")

    numbers = {key: _entry(table[key], f"gpu {where}: {key}") for key in known[2:]}
    count, _ = numbers["gpus_per_node"]
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _LARGEST_NODE:
        raise InputError(
            f"gpu {where}: gpus_per_node is {count!r}; it must be a whole number of at least 1"
        )
    values = {
        key: parse_quantity(str(numbers[key][0]), unit, name=f"gpu {where}: {key}")
        for key, unit in GPU_UNITS.items()
    }
    spec = GpuSpec(name=name, gpus_per_node=count, **values)
    return _Gpu(spec, tuple(aliases), {key: source for key, (_, source) in numbers.items()})


def _entry(entry: Any, where: str) -> tuple[Any, str]:
    """The value of a number and its source."""
    if not isinstance(entry, dict) or set(entry) != {"value", "source"}:
        raise InputError(
            f"{where} must say its value and where that comes from: "
            '{value = "...", source = "..."}'
        )
    if not isinstance(entry["source"], str) or not entry["source"].strip():
        raise InputError(f"{where}: source must say where the number comes from")
    return entry["value"], entry["source"]
