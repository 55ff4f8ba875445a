"""Models from the ``config.json`` that Hugging Face checkpoints carry.

What is not understood is refused with the field that stands in the way; nothing is guessed.
`fluidserve.io.families` holds what differs between families.

Ignores: that quantised checkpoints keep norms, embeddings and the output head in 16 bits (every
parameter counts in `weight_dtype`), and the scales of block-wise formats.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fluidserve.errors import InputError
from fluidserve.io.families import Family, Fields, family_of, shown
from fluidserve.specs.model import BYTES_PER_VALUE, ModelSpec

_LARGEST_FILE = 16 * 2**20

_SIXTEEN_BITS = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "float16": "float16",
}
WEIGHT_DTYPES: dict[str, str] = _SIXTEEN_BITS | {
    name: name for name in ("fp8", "int8", "int4", "fp4")
}
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
    "compress_ratios": "compressed attention",
    "full_attention_interval": "linear attention in some layers",
    "linear_num_key_heads": "linear attention in some layers",
    "hybrid_override_pattern": "state-space layers",
    "mamba_num_heads": "state-space layers",
    "num_kv_shared_layers": "layers that share their KV cache",
}


def read_model(
    path_or_dict: str | os.PathLike[str] | Mapping[str, Any],
    *,
    name: str | None = None,
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
) -> ModelSpec:
    """Reads a model from its config.

    Parameters are counted exactly from the shapes of the family's reference implementation; layers
    for predicting several tokens at once are not counted.

    Args:
      path_or_dict: a ``config.json``, a directory that holds one, or its decoded content.
      name: what to call the model; by default the directory or file it was read from.
      weight_dtype: format of the weights, a key of `WEIGHT_DTYPES`; by default that of the
        checkpoint: ``fp8`` where it is quantised so, else ``torch_dtype``, a float32 checkpoint
        counting as it is stored.
      kv_dtype: format of the KV cache, a key of `KV_DTYPES`; by default the 16-bit format that
        the model computes in, also where its weights are smaller or float32.

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
        if weight_dtype is None and (path.parent / "hf_quant_config.json").is_file():
            raise InputError(
                f"{where}: hf_quant_config.json beside it says that the checkpoint is quantised; "
                "give weight_dtype, for example fp8"
            )
        folder = path.resolve().parent.name
        name = name or (folder if path.name == "config.json" and folder else path.stem)
    config = Fields(values, where)
    _refuse_what_is_not_modelled(config)
    family = family_of(config)
    for field, value in family.only.items():
        if config.get(field) not in (None, value):
            raise config.error(
                field,
                f"is {shown(config.get(field))}; {family.architecture} is read only with "
                f"{json.dumps(value)}",
            )
    weights, kv = _dtypes(config, weight_dtype, kv_dtype)
    return _build(config, family, name or family.architecture, weights, kv)


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


def _refuse_what_is_not_modelled(config: Fields) -> None:
    for field, what in _REFUSED.items():
        if config.get(field) not in (None, False, 0, [], {}):
            raise config.error(
                field, f"means {what}, which is not modelled; use a plain text model"
            )
    layer_types = config.get("layer_types")
    if layer_types is not None and (
        not isinstance(layer_types, list) or any(t != "full_attention" for t in layer_types)
    ):
        raise config.error("layer_types", "only full_attention in every layer is modelled")
    if config.flag("is_encoder_decoder", False):
        raise config.error("is_encoder_decoder", "only decoder-only models are read")


def _refuse_active_window(config: Fields, family: Family, max_positions: int) -> None:
    """Sliding windows are refused unless they are switched off or hold the whole context."""
    if family.window_switch:
        if config.flag("use_sliding_window", False):
            raise config.error(
                "use_sliding_window", "sliding-window attention is not modelled; it must be false"
            )
        return
    window = family.window
    if "sliding_window" in config.values:
        window = config.optional_size("sliding_window")
    if window is not None and window < max_positions:
        absent = "" if config.get("sliding_window") else " (what this family takes when absent)"
        raise config.error(
            "sliding_window",
            f"is {window} tokens{absent}, fewer than max_position_embeddings {max_positions}; "
            "sliding-window attention is not modelled: it must be null or hold the whole context",
        )


def _dtypes(config: Fields, weight_dtype: str | None, kv_dtype: str | None) -> tuple[str, str]:
    """Formats of weights and KV cache."""
    stored = config.get("torch_dtype") or config.get("dtype")
    if stored is not None:
        stored = str(stored).removeprefix("torch.")
        if stored not in _CHECKPOINT_DTYPES:
            raise config.error(
                "torch_dtype", f"is {stored!r}; it must be one of {', '.join(_CHECKPOINT_DTYPES)}"
            )
    quantised = _quantised(config)
    if weight_dtype is not None:
        weights = _format(weight_dtype, WEIGHT_DTYPES, "weight_dtype")
    elif quantised or stored:
        weights = quantised or str(stored)
    else:
        raise config.error(
            "torch_dtype", "is missing; write it into the config or give weight_dtype"
        )
    if kv_dtype is not None:
        return weights, _format(kv_dtype, KV_DTYPES, "kv_dtype")
    computes = [d for d in (weights, stored) if d in _SIXTEEN_BITS]
    return weights, computes[0] if computes else "bfloat16"


def _quantised(config: Fields) -> str | None:
    """``fp8`` for a checkpoint in 8-bit floats, None for one that is not quantised."""
    for field in ("quantization_config", "compression_config"):
        quantisation = config.get(field)
        if quantisation is None:
            continue
        method = quantisation.get("quant_method") if isinstance(quantisation, dict) else None
        if field == "quantization_config" and method == "fp8":
            return "fp8"
        raise config.error(
            field,
            f"quant_method is {method!r}; only plain fp8 checkpoints are read: take the config of "
            "the model before quantisation and give weight_dtype",
        )
    return None


def _format(asked: str, known: Mapping[str, str], argument: str) -> str:
    try:
        return known[asked.strip().lower()]
    except KeyError:
        raise InputError(f"{argument}: {asked!r} must be one of {', '.join(known)}") from None


def _build(config: Fields, family: Family, name: str, weights: str, kv: str) -> ModelSpec:
    layers, hidden = config.size("num_hidden_layers"), config.size("hidden_size")
    vocab, max_positions = config.size("vocab_size"), config.size("max_position_embeddings")
    _refuse_active_window(config, family, max_positions)
    projected = config.optional_size("word_embed_proj_dim")
    if projected not in (None, hidden):
        raise config.error(
            "word_embed_proj_dim", f"is {projected}; it must be hidden_size {hidden}"
        )
    attention, ffn = family.attention(config, family), family.feed_forward(config)

    table = vocab * hidden
    looked_up = 0 if config.flag("tie_word_embeddings", family.tied) else table
    if family.extra_positions is not None:
        looked_up += (max_positions + family.extra_positions) * hidden
    norms = (2 * layers + 1) * family.norm_vectors * hidden
    common = looked_up + table + layers * attention.parameters + norms + ffn.common
    visited = ffn.routed * ffn.experts_per_token // ffn.experts if ffn.experts else 0
    parameters = float(common + ffn.routed)
    return ModelSpec(
        name=name,
        architecture=family.architecture,
        attention=attention.kind,
        layers=layers,
        sublayers=2 * layers,
        hidden=hidden,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        window_kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        intermediate=ffn.width,
        vocab=vocab,
        experts=ffn.experts,
        experts_per_token=ffn.experts_per_token,
        max_positions=max_positions,
        window=0,
        sparse_tokens=0,
        weight_dtype=weights,
        kv_dtype=kv,
        parameters=parameters,
        active_parameters=float(common + visited),
        embedding_parameters=float(looked_up),
        head_parameters=float(table),
        expert_parameters=float(ffn.routed),
        weight_bytes=parameters * BYTES_PER_VALUE[weights],
        expert_bytes=float(ffn.routed) * BYTES_PER_VALUE[weights],
        outside_bytes=float(looked_up + table) * BYTES_PER_VALUE[weights],
        kv_bytes_per_token=layers * attention.kv_values * BYTES_PER_VALUE[kv],
        kv_window_bytes=0.0,
        index_bytes_per_token=0.0,
        state_bytes=0.0,
        attention_flop=float(layers * attention.pair_flop),
        limited_attention_flop=0.0,
        state_flop=0.0,
        notes=(),
    )
