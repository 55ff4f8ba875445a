"""Models from the ``config.json`` that Hugging Face checkpoints carry.

What is not understood is refused with the field that stands in the way; nothing is guessed.
`fluidserve.io.families` holds what differs between families, `fluidserve.io.quantisation` the
formats of quantised checkpoints.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fluidserve.errors import InputError
from fluidserve.io.attention import Attention
from fluidserve.io.families import family_of
from fluidserve.io.family import Family
from fluidserve.io.fields import Fields, shown
from fluidserve.io.mixers import INDEX_KEY_BYTES
from fluidserve.io.quantisation import Quantisation, from_checkpoint, uniform
from fluidserve.specs.model import BYTES_PER_VALUE, ModelSpec

_LARGEST_FILE = 16 * 2**20

_SIXTEEN_BITS = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "float16": "float16",
}
WEIGHT_DTYPES: dict[str, str] = (
    _SIXTEEN_BITS
    | {name: name for name in ("fp8", "int8", "int4", "mxfp4", "nvfp4")}
    | {"fp4": "mxfp4"}
)
"""Formats that weights can be asked for, with their spelling in `ModelSpec`."""
KV_DTYPES: dict[str, str] = _SIXTEEN_BITS | {name: name for name in ("fp8", "int8")}
"""Formats that the KV cache can be asked for, with their spelling in `ModelSpec`."""
_CHECKPOINT_DTYPES = ("bfloat16", "float16", "float32")

_REFUSED = {
    "vision_config": "a model with images",
    "audio_config": "a model with sound",
    "text_config": "a text model wrapped in a larger one",
    "attention_chunk_size": "attention within chunks",
    "index_topk": "sparse attention with an indexer",
    "sparse_attention_config": "sparse attention with an indexer",
    "compress_ratios": "compressed attention",
    "full_attention_interval": "linear attention in some layers",
    "linear_num_key_heads": "linear attention in some layers",
    "hybrid_override_pattern": "state-space layers",
    "layers_block_type": "state-space layers",
    "mamba_num_heads": "state-space layers",
    "num_kv_shared_layers": "layers that share their KV cache",
}
"""Fields that only families with `Family.uses` of them understand."""

_WRAPPED = ("tie_word_embeddings", "torch_dtype", "dtype", "quantization_config", "expert_dtype")
"""Fields of a larger model that hold for the text model in it, unless it has its own."""


def read_model(
    path_or_dict: str | os.PathLike[str] | Mapping[str, Any],
    *,
    name: str | None = None,
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
) -> ModelSpec:
    """Reads a model from its config.

    Parameters are counted from the shapes of the family's reference implementation; layers for
    predicting several tokens at once and encoders of images and sound are not counted, and
    `ModelSpec.notes` says so.

    Args:
      path_or_dict: a ``config.json``, a directory that holds one, or its decoded content.
      name: what to call the model; by default the directory or file it was read from.
      weight_dtype: format of all matrices of the layers, a key of `WEIGHT_DTYPES`; embeddings,
        output head, norms and routers stay in 16 bits. By default the checkpoint's: what its
        ``quantization_config`` says, else ``torch_dtype``, a float32 checkpoint counting as it is
        stored.
      kv_dtype: format of the KV cache, a key of `KV_DTYPES`; by default what the quantised
        checkpoint asks for, else the 16-bit format that the model computes in.

    Returns:
      the model; counts in SI units as `ModelSpec` says.

    Raises:
      InputError: no such file, not a JSON object, or a field that is missing, wrong or not
        understood; the message names it.

    Example:
      >>> config = dict(architectures=["LlamaForCausalLM"], hidden_size=4096, vocab_size=32000)
      >>> config |= dict(num_hidden_layers=32, num_attention_heads=32, intermediate_size=11008)
      >>> config |= dict(max_position_embeddings=4096, torch_dtype="float16")
      >>> model = read_model(config, name="Llama-2-7B")
      >>> f"{model.parameters:.0f} {model.kv_bytes_per_token:.0f} {model.attention}"
      '6738415616 524288 MHA'
    """
    if isinstance(path_or_dict, Mapping):
        values, where = path_or_dict, name or "config"
    else:
        path = _config_file(Path(path_or_dict))
        values, where = _load(path), str(path)
        if "quantization_config" not in values:
            values = {**values, **_quantised_beside(path)}
        folder = path.resolve().parent.name
        name = name or (folder if path.name == "config.json" and folder else path.stem)
    config = Fields(values, where)
    family = family_of(config)
    config = _text_model(config, family)
    _refuse_what_is_not_modelled(config, family)
    for field, value in family.only.items():
        if config.get(field) not in (None, value):
            raise config.error(
                field,
                f"is {shown(config.get(field))}; {family.architecture} is read only with "
                f"{json.dumps(value)}",
            )
    named = values.get("architectures") or [family.architecture]
    return _build(config, family, name or named[0], named[0], weight_dtype, kv_dtype)


def _config_file(path: Path) -> Path:
    try:
        if path.is_dir():
            path = path / "config.json"
        found = path.is_file()
    except OSError:  # a name too long for the file system, a directory without permission
        found = False
    if not found:
        raise InputError(f"{path}: no such file; give a config.json or the directory that holds it")
    return path


def _load(path: Path) -> Mapping[str, Any]:
    """The JSON object in a file."""
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise InputError(f"{path}: too large for a config.json; is it a weight file?")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not text; give the config.json of the model") from None
    if not text.strip():
        raise InputError(f"{path}: is empty; give the config.json of the model")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not valid JSON ({error})") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: holds no JSON object; a config.json starts with a brace")
    return values


def _quantised_beside(path: Path) -> dict[str, Any]:
    """What ``hf_quant_config.json`` beside a config says, in the form of the config's own field."""
    beside = path.parent / "hf_quant_config.json"
    if not beside.is_file():
        return {}
    inner = _load(beside).get("quantization")
    if not isinstance(inner, dict):
        raise InputError(f"{beside}: quantization: is missing; give weight_dtype, for example fp8")
    return {"quantization_config": {"quant_method": "modelopt", **inner}}


def _text_model(config: Fields, family: Family) -> Fields:
    """The fields of the text model, where a family wraps it in a larger one."""
    inner = config.get("text_config")
    if not family.wrappers or not isinstance(inner, dict):
        return config
    kept = {field: config.values[field] for field in _WRAPPED if field in config.values}
    extra = {f: config.values[f] for f in ("vision_config", "audio_config") if config.get(f)}
    return Fields(kept | inner | {"_left_out": extra}, config.where)


def _refuse_what_is_not_modelled(config: Fields, family: Family) -> None:
    for field, what in _REFUSED.items():
        if field not in family.uses and config.get(field) not in (None, False, 0, [], {}):
            raise config.error(
                field, f"means {what}, which is not modelled here; use a plain text model"
            )
    if config.flag("is_encoder_decoder", False):
        raise config.error("is_encoder_decoder", "only decoder-only models are read")


def _notes(config: Fields, family: Family) -> tuple[str, ...]:
    """What a user should know about how the config was read."""
    notes = list(family.notes)
    if config.get("_left_out"):
        notes.append("encoders of images or sound are not counted: text requests only")
    ahead = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
    if any(config.get(field) for field in ahead):
        notes.append("layers that predict several tokens at once are not counted")
    return tuple(notes)


def _stored(config: Fields) -> str | None:
    """Format of the weights that are not quantised; None when the config does not say it."""
    stored = config.get("torch_dtype") or config.get("dtype")
    if stored is None:
        return None
    stored = str(stored).removeprefix("torch.")
    if stored not in _CHECKPOINT_DTYPES:
        raise config.error(
            "torch_dtype", f"is {stored!r}; it must be one of {', '.join(_CHECKPOINT_DTYPES)}"
        )
    return stored


def _formats(config: Fields, layers: int, weight_dtype: str | None) -> tuple[Quantisation, str]:
    """Formats of the matrices, and that of everything else."""
    stored = _stored(config)
    if weight_dtype is not None:
        asked = _format(weight_dtype, WEIGHT_DTYPES, "weight_dtype")
        rest = asked if asked in _SIXTEEN_BITS else stored
        return uniform(asked), rest if rest in _SIXTEEN_BITS else "bfloat16"
    quantised = from_checkpoint(config, layers)
    if quantised is not None:
        return quantised, stored or "bfloat16"
    if stored is None:
        raise config.error(
            "torch_dtype", "is missing; write it into the config or give weight_dtype"
        )
    return uniform(stored), stored


def _kv_format(quantised: Quantisation, rest: str, kv_dtype: str | None) -> str:
    """Format of the KV cache."""
    if kv_dtype is not None:
        return _format(kv_dtype, KV_DTYPES, "kv_dtype")
    return quantised.kv_dtype or (rest if rest in _SIXTEEN_BITS else "bfloat16")


def _format(asked: str, known: Mapping[str, str], argument: str) -> str:
    try:
        return known[asked.strip().lower()]
    except KeyError:
        raise InputError(f"{argument}: {asked!r} must be one of {', '.join(known)}") from None


def _build(
    config: Fields,
    family: Family,
    name: str,
    architecture: str,
    weight_dtype: str | None,
    kv_dtype: str | None,
) -> ModelSpec:
    blocks = family.blocks(config) if family.blocks else None
    layers = sum(blocks.values()) if blocks else config.size("num_hidden_layers")
    hidden, vocab = config.size("hidden_size"), config.size("vocab_size")
    max_positions = config.size("max_position_embeddings")
    projected = config.optional_size("word_embed_proj_dim")
    if projected not in (None, hidden):
        raise config.error(
            "word_embed_proj_dim", f"is {projected}; it must be hidden_size {hidden}"
        )
    quantised, rest = _formats(config, layers, weight_dtype)
    kv = _kv_format(quantised, rest, kv_dtype)
    attention = family.attention(config, family, layers)
    ffn = family.feed_forward(config, blocks["-"] + blocks["E"] if blocks else layers)

    table = vocab * hidden
    looked_up = 0 if config.flag("tie_word_embeddings", family.tied) else table
    if family.extra_positions is not None:
        looked_up += (max_positions + family.extra_positions) * hidden
    parts = {
        "attention": sum(n * mixer.matrices for n, mixer in attention.mixers),
        "dense": ffn.dense,
        "shared": ffn.shared,
        "experts": ffn.routed,
    }
    vectors = sum(n * mixer.vectors for n, mixer in attention.mixers)
    norms = (family.norms * layers + 1) * family.norm_vectors * hidden
    plain = looked_up + table + vectors + norms + ffn.routers
    visited = ffn.routed * ffn.experts_per_token // ffn.experts if ffn.experts else 0
    sizes, compute = _part_sizes(quantised, parts, BYTES_PER_VALUE[rest])
    active = parts | {"experts": visited}
    fast = {p: f.compute for p, f in quantised.formats.items() if f.compute in ("fp8", "int8")}
    most = max(parts, key=lambda part: parts[part])
    return ModelSpec(
        name=name,
        architecture=architecture,
        attention=attention.kind,
        layers=layers,
        sublayers=layers if blocks else 2 * layers,
        hidden=hidden,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        window_kv_heads=attention.window_kv_heads or attention.kv_heads,
        head_dim=attention.head_dim,
        intermediate=ffn.width,
        vocab=vocab,
        experts=ffn.experts,
        experts_per_token=ffn.experts_per_token,
        max_positions=max_positions,
        window=attention.window,
        sparse_tokens=attention.sparse_tokens,
        weight_dtype=quantised.formats[most].name,
        compute_dtype=next(iter(fast.values()), "bfloat16"),
        kv_dtype=kv,
        parameters=float(plain + sum(parts.values())),
        active_parameters=float(plain + sum(active.values())),
        compute_parameters=float(sum(active[part] * compute[part] for part in fast)),
        embedding_parameters=float(looked_up),
        head_parameters=float(table),
        expert_parameters=float(ffn.routed),
        weight_bytes=plain * BYTES_PER_VALUE[rest] + sum(sizes.values()),
        expert_bytes=float(sizes["experts"]),
        outside_bytes=(looked_up + table) * BYTES_PER_VALUE[rest],
        notes=_notes(config, family),
        **_kv_fields(config, attention, BYTES_PER_VALUE[kv]),
    )


def _part_sizes(
    quantised: Quantisation, parts: Mapping[str, int], wide: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Bytes of each part, and the share of it that is quantised."""
    shares = {part: 1.0 - quantised.left[part] for part in parts}
    sizes = {
        part: count * (shares[part] * quantised.formats[part].size + quantised.left[part] * wide)
        for part, count in parts.items()
    }
    return sizes, shares


def _kv_fields(config: Fields, attention: Attention, size: float) -> dict[str, float]:
    """What requests keep and what attention costs, with `size` bytes for each number."""

    def total(what: str, *, windowed: bool | None = None, chosen: bool | None = None) -> float:
        return float(
            sum(
                n * getattr(mixer, what)
                for n, mixer in attention.mixers
                if windowed in (None, mixer.windowed) and chosen in (None, mixer.chosen)
            )
        )

    pairs, scores = total("pair_flop"), total("index_flop")
    limited = total("pair_flop", windowed=True)
    limited += total("pair_flop", chosen=True) if attention.sparse_tokens else 0.0
    state_dtype = config.get("mamba_ssm_dtype") or config.get("mamba_ssm_cache_dtype")
    wide = 4.0 if state_dtype == "float32" else 2.0
    index = INDEX_KEY_BYTES if config.get("index_topk") else size
    return {
        "kv_bytes_per_token": total("kv_values", windowed=False) * size,
        "kv_window_bytes": attention.window * total("kv_values", windowed=True) * size,
        "chosen_bytes_per_token": total("kv_values", chosen=True) * size,
        "index_bytes_per_token": total("index_values") * index,
        "state_bytes": total("state_values") * wide + total("buffer_values") * size,
        "attention_flop": pairs + scores,
        "limited_attention_flop": limited,
        "state_flop": total("state_flop"),
    }
