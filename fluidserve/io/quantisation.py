"""Number formats of weights: what a quantised checkpoint says of its parts.

Quantised are the matrices of attention, dense layers, shared and routed experts, unless the
checkpoint names them among its exceptions; embeddings, output head, norms, biases and routers stay
in 16 bits. Bytes include the scales of block-wise formats, except those of 8-bit blocks (0.03 %).

A format computes in 8 bits when activations are quantised to 8 bits as well. Weights of 4 bits are
widened and multiplied in 16 bits.
"""

import dataclasses
import fnmatch
import re
from collections.abc import Iterable, Mapping
from typing import Any

from fluidserve.errors import InputError
from fluidserve.io.fields import Fields
from fluidserve.specs.model import BYTES_PER_VALUE

PARTS: dict[str, tuple[str, ...]] = {
    "attention": ("self_attn.o_proj", "self_attn.q_proj", "linear_attn.out_proj", "mixer.out_proj"),
    "dense": ("mlp.down_proj",),
    "shared": ("mlp.shared_experts.down_proj", "mlp.shared_expert.down_proj"),
    "experts": ("mlp.experts.0.down_proj", "block_sparse_moe.experts.0.w2"),
}
"""Parts of a layer that are quantised or left alone, and modules that stand for them."""
_ROOTS = ("model", "language_model.model", "model.language_model", "backbone")


@dataclasses.dataclass(frozen=True)
class Format:
    """A number format of weights.

    Attributes:
      name: what it is called.
      size: bytes of one weight with its share of the scales.
      compute: format of the products: ``fp8``, ``int8`` or the 16 bits of the activations.
    """

    name: str
    size: float
    compute: str


@dataclasses.dataclass(frozen=True)
class Quantisation:
    """What a checkpoint's weights are stored in.

    Attributes:
      formats: by part of a layer, as in `PARTS`.
      left: share of the layers in which that part stays in 16 bits.
      kv_dtype: format of the KV cache that the checkpoint asks for; None when it does not.
    """

    formats: Mapping[str, Format]
    left: Mapping[str, float]
    kv_dtype: str | None = None


def uniform(name: str) -> Quantisation:
    """Every part in one format."""
    compute = name if name in ("fp8", "int8") else "bfloat16"
    one = Format(name=name, size=BYTES_PER_VALUE[name], compute=compute)
    return Quantisation(formats=dict.fromkeys(PARTS, one), left=dict.fromkeys(PARTS, 0.0))


def from_checkpoint(config: Fields, layers: int) -> Quantisation | None:
    """What ``quantization_config`` says; None where there is none.

    Raises:
      InputError: a method or format that is not understood; the message names the field.
    """
    for field in ("quantization_config", "compression_config"):
        found = config.get(field)
        if found is None:
            continue
        if not isinstance(found, Mapping):
            raise config.error(field, f"is {found!r}; it must be an object")
        try:
            return _read(config, found, layers)
        except InputError as error:
            raise config.error(field, f"{error}; give weight_dtype to choose a format") from None
    return None


def _read(config: Fields, values: Mapping[str, Any], layers: int) -> Quantisation:
    method = values.get("quant_method")
    ignored = values.get("ignore") or values.get("modules_to_not_convert") or []
    ignored = ignored or values.get("exclude_modules") or []
    kv_dtype = None
    if method in ("fp8", "fbgemm_fp8"):
        one = _FP8
    elif method == "mxfp4":
        one = _MXFP4
    elif method in ("awq", "gptq"):
        one = _integer(values.get("bits"), values.get("group_size"), activations=False)
    elif method == "compressed-tensors":
        one = _compressed(values)
        kv_dtype = "fp8" if values.get("kv_cache_scheme") else None
    elif method == "modelopt":
        one = _modelopt(values.get("quant_algo"))
        kv_dtype = "fp8" if values.get("kv_cache_quant_algo") == "FP8" else None
    else:
        raise InputError(
            f"quant_method is {method!r}; known are fp8, mxfp4, compressed-tensors, modelopt, awq "
            "and gptq"
        )
    formats = dict.fromkeys(PARTS, one)
    if method == "mxfp4":  # only experts come in this format; the rest is not converted
        formats = dict.fromkeys(PARTS, _SIXTEEN) | {"experts": _MXFP4}
    if config.get("expert_dtype") == "fp4":
        formats["experts"] = dataclasses.replace(_MXFP4, compute="fp8")
    patterns = list(_patterns(ignored))
    left = {part: _left_out(names, patterns, layers) for part, names in PARTS.items()}
    return Quantisation(formats=formats, left=left, kv_dtype=kv_dtype)


_SIXTEEN = Format("bfloat16", 2.0, "bfloat16")
_FP8 = Format("fp8", 1.0, "fp8")
_MXFP4 = Format("mxfp4", BYTES_PER_VALUE["mxfp4"], "bfloat16")
_NVFP4 = Format("nvfp4", BYTES_PER_VALUE["nvfp4"], "bfloat16")


def _integer(bits: Any, group: Any, *, activations: bool) -> Format:
    if bits == 8:
        return Format("int8", 1.0, "int8" if activations else "bfloat16")
    if bits == 4:
        scales = 2.0 / group if isinstance(group, int) and group > 0 else 0.0
        return Format("int4", 0.5 + scales, "bfloat16")
    raise InputError(f"weights of {bits!r} bits are not understood; 4 and 8 are")


def _compressed(values: Mapping[str, Any]) -> Format:
    groups = values.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise InputError("config_groups must hold one group; several formats are not understood")
    (group,) = groups.values()
    weights = group.get("weights") or {}
    activations = bool(group.get("input_activations"))
    bits, size = weights.get("num_bits"), weights.get("group_size")
    if weights.get("type") == "int":
        return _integer(bits, size, activations=activations)
    if weights.get("type") == "float" and bits == 8:
        return _FP8 if activations else dataclasses.replace(_FP8, compute="bfloat16")
    if weights.get("type") == "float" and bits == 4:
        return _MXFP4 if size == 32 else _NVFP4
    raise InputError(f"weights of {bits!r} bits and type {weights.get('type')!r}")


def _modelopt(algorithm: Any) -> Format:
    known = {"FP8": _FP8, "NVFP4": _NVFP4, "W4A16_AWQ": _integer(4, 128, activations=False)}
    if algorithm not in known:
        raise InputError(f"quant_algo is {algorithm!r}; known are {', '.join(known)}")
    return known[algorithm]


def _patterns(ignored: Iterable[Any]) -> Iterable[str | re.Pattern[str]]:
    """Names with wildcards, or regular expressions behind ``re:``."""
    for entry in ignored:
        if not isinstance(entry, str):
            raise InputError(f"an exception is {entry!r}; it must be the name of a module")
        if not entry.startswith("re:"):
            yield entry
            continue
        try:
            yield re.compile(entry[3:])
        except re.error as error:
            raise InputError(f"the exception {entry!r} is no expression ({error})") from None


def _left_out(names: tuple[str, ...], patterns: list[str | re.Pattern[str]], layers: int) -> float:
    """Share of the layers in which one of the modules is among the exceptions."""
    relevant = [p for p in patterns if not isinstance(p, str) or _may_match(p, names)]
    if not relevant:
        return 0.0
    count = sum(
        any(
            _matches(pattern, f"{root}.layers.{layer}.{name}")
            for root in _ROOTS
            for name in names
            for pattern in relevant
        )
        for layer in range(layers)
    )
    return count / layers


def _may_match(pattern: str, names: tuple[str, ...]) -> bool:
    """Whether the last component of a pattern can name one of the modules or what holds it."""
    last = pattern.rpartition(".")[2]
    parts = {"layers", *(part for name in names for part in name.split("."))}
    return last.isdigit() or any(fnmatch.fnmatchcase(part, last) for part in parts)


def _matches(pattern: str | re.Pattern[str], module: str) -> bool:
    """Whether an exception names a module, or one that holds it."""
    if not isinstance(pattern, str):
        return pattern.match(module) is not None
    wanted, parts = pattern.split("."), module.split(".")
    return any(
        all(map(fnmatch.fnmatchcase, parts[start : start + len(wanted)], wanted))
        for start in range(len(parts) - len(wanted) + 1)
    )
