"""Families of language models: how the fields of a config turn into parameters, KV and FLOP.

A family is a row of `FAMILIES`: which formula its attention and its feed-forward part follow, and
the habits of its reference implementation (biases, norms, defaults of absent fields). Adding a
family with known parts is one more row; a new kind of part is one function.

Source of the shapes and of the defaults: the modelling code of each family in Hugging Face
transformers, version 4.57, and for DeepSeek the code published with its weights.

Ignores: layers for predicting several tokens at once (``num_nextn_predict_layers``), which plain
decoding does not use, and the scales of block-wise number formats.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from fluidserve.io.fields import Fields, shown


@dataclasses.dataclass(frozen=True)
class Attention:
    """The attention of one layer.

    Attributes:
      kind: ``MHA``, ``GQA``, ``MQA`` or ``MLA``.
      heads: query heads.
      kv_heads: key-value heads; 1 for MLA.
      head_dim: width of a query-key head.
      parameters: its parameters, norms of queries and keys included.
      kv_values: numbers that one token leaves in the cache.
      pair_flop: FLOP of scores and values for one (new token, attended token) pair.
    """

    kind: str
    heads: int
    kv_heads: int
    head_dim: int
    parameters: int
    kv_values: int
    pair_flop: int


@dataclasses.dataclass(frozen=True)
class FeedForward:
    """The feed-forward parts of all layers.

    Attributes:
      common: parameters that every token passes: dense layers, shared experts, routers.
      routed: parameters of all routed experts.
      width: feed-forward width that one token passes in a layer.
      experts: routed experts of a layer; 0 when dense.
      experts_per_token: routed experts that a token visits.
    """

    common: int
    routed: int
    width: int
    experts: int = 0
    experts_per_token: int = 0


Switch = bool | str
"""A habit of the family (True, False) or the field that decides, absent meaning no."""


@dataclasses.dataclass(frozen=True)
class Family:
    """What distinguishes a family of models.

    Attributes:
      architecture: class name in ``architectures``.
      model_types: values of ``model_type`` that go with it.
      attention: formula of its attention.
      feed_forward: formula of its feed-forward part.
      qkv_bias: biases of the query, key and value projections.
      output_bias: bias of the attention's output projection.
      qk_norm: norms of queries and keys: ``""`` none, ``"head"`` one head wide, ``"all"`` all
        heads wide.
      derives_head_dim: an absent ``head_dim`` means hidden size / heads.
      derives_kv_heads: absent ``num_key_value_heads`` means one per query head.
      norm_vectors: vectors of a norm: 1 for a scale, 2 for scale and shift.
      extra_positions: rows of a learned position table beyond ``max_position_embeddings``; None
        when positions are not learned.
      tied: whether an absent ``tie_word_embeddings`` means a shared table.
      window: what an absent ``sliding_window`` means.
      window_switch: whether ``use_sliding_window`` decides if the window is used.
      only: fields whose other values the formulas do not cover; absence is fine.
    """

    architecture: str
    model_types: tuple[str, ...]
    attention: Callable[[Fields, "Family"], Attention]
    feed_forward: Callable[[Fields], FeedForward]
    qkv_bias: Switch = False
    output_bias: Switch = False
    qk_norm: str = ""
    derives_head_dim: bool = True
    derives_kv_heads: bool = False
    norm_vectors: int = 1
    extra_positions: int | None = None
    tied: bool = False
    window: int | None = None
    window_switch: bool = False
    only: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def _switch(config: Fields, switch: Switch) -> bool:
    return config.flag(switch, False) if isinstance(switch, str) else switch


def grouped_attention(config: Fields, family: Family) -> Attention:
    """Heads of their own (MHA), shared by groups (GQA) or by all (MQA)."""
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    kv_heads = config.optional_size("num_key_value_heads")
    if kv_heads is None:
        kv_heads = heads if family.derives_kv_heads else config.size("num_key_value_heads")
    if heads % kv_heads:
        raise config.error(
            "num_key_value_heads", f"is {kv_heads}; it must divide the {heads} attention heads"
        )
    head_dim = config.optional_size("head_dim")
    if head_dim is None:
        if not family.derives_head_dim:
            raise config.error("head_dim", "is missing; this family does not derive it")
        if hidden % heads:
            raise config.error(
                "num_attention_heads",
                f"is {heads}; it must divide hidden_size {hidden} when head_dim is absent",
            )
        head_dim = hidden // heads
    q, kv = heads * head_dim, kv_heads * head_dim
    parameters = hidden * (q + 2 * kv) + q * hidden
    parameters += (q + 2 * kv) * _switch(config, family.qkv_bias)
    parameters += hidden * _switch(config, family.output_bias)
    parameters += {"": 0, "head": 2 * head_dim, "all": q + kv}[family.qk_norm]
    return Attention(
        kind="MHA" if kv_heads == heads else "MQA" if kv_heads == 1 else "GQA",
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        parameters=parameters,
        kv_values=2 * kv,
        pair_flop=4 * q,
    )


def latent_attention(config: Fields, family: Family) -> Attention:
    """Multi-head latent attention (MLA): the cache holds one latent and one rotary key per token.

    An absent or null ``q_lora_rank`` means that queries are not compressed, as serving engines
    read it.

    Source: DeepSeek-V2 (2024), section 2.1 and appendix C.
    """
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    rope, nope = config.size("qk_rope_head_dim"), config.size("qk_nope_head_dim")
    latent, value = config.size("kv_lora_rank"), config.size("v_head_dim")
    q_rank = config.optional_size("q_lora_rank")
    bias = _switch(config, family.output_bias)
    queries = heads * (nope + rope)
    if q_rank is None:
        parameters = hidden * queries
    else:
        parameters = hidden * q_rank + q_rank * bias + q_rank + q_rank * queries
    parameters += (hidden + bias) * (latent + rope) + latent + latent * heads * (nope + value)
    parameters += (heads * value + bias) * hidden
    return Attention(
        kind="MLA",
        heads=heads,
        kv_heads=1,
        head_dim=nope + rope,
        parameters=parameters,
        kv_values=latent + rope,
        pair_flop=2 * heads * (nope + rope + value),
    )


def gated_mlp(config: Fields) -> FeedForward:
    """Gate, up and down projections; biases where ``mlp_bias`` says so."""
    layers, hidden = config.size("num_hidden_layers"), config.size("hidden_size")
    width = config.size("intermediate_size")
    bias = (2 * width + hidden) * config.flag("mlp_bias", False)
    return FeedForward(common=layers * (3 * hidden * width + bias), routed=0, width=width)


def opt_mlp(config: Fields) -> FeedForward:
    """Two projections with biases."""
    layers, hidden = config.size("num_hidden_layers"), config.size("hidden_size")
    width = config.size("ffn_dim")
    return FeedForward(common=layers * (2 * hidden * width + width + hidden), routed=0, width=width)


def mixture(
    config: Fields,
    *,
    experts: str,
    width: str,
    shared: str | None = None,
    first_dense: str | None = None,
) -> FeedForward:
    """Gated experts behind a linear router, after some dense layers.

    Args:
      config: the fields.
      experts: field with the number of routed experts.
      width: field with the width of an expert.
      shared: field with the number of shared experts, which every token passes; None for none.
      first_dense: field with the number of leading dense layers of ``intermediate_size``; None
        for none.
    """
    layers, hidden = config.size("num_hidden_layers"), config.size("hidden_size")
    n, top = config.size(experts), config.size("num_experts_per_tok")
    if top > n:
        raise config.error("num_experts_per_tok", f"is {top}; {experts} is only {n}")
    dense = config.size(first_dense, least=0) if first_dense else 0
    if first_dense and dense > layers:
        raise config.error(first_dense, f"is {dense}; num_hidden_layers is only {layers}")
    n_shared = config.size(shared, least=0) if shared else 0
    expert = 3 * hidden * config.size(width)
    router = hidden * n + n * (config.get("topk_method") == "noaux_tc")
    common = (layers - dense) * (n_shared * expert + router)
    if dense:
        common += dense * 3 * hidden * config.size("intermediate_size")
    return FeedForward(
        common=common,
        routed=(layers - dense) * n * expert,
        width=(top + n_shared) * config.size(width),
        experts=n,
        experts_per_token=top,
    )


def mixtral_experts(config: Fields) -> FeedForward:
    """Experts of the full feed-forward width in every layer."""
    return mixture(config, experts="num_local_experts", width="intermediate_size")


def qwen_experts(config: Fields) -> FeedForward:
    """Many narrow experts in every layer."""
    return mixture(config, experts="num_experts", width="moe_intermediate_size")


def deepseek_experts(config: Fields) -> FeedForward:
    """Many narrow experts and shared ones, after leading dense layers."""
    return mixture(
        config,
        experts="n_routed_experts",
        width="moe_intermediate_size",
        shared="n_shared_experts",
        first_dense="first_k_dense_replace",
    )


FAMILIES: tuple[Family, ...] = (
    Family(
        architecture="OPTForCausalLM",
        model_types=("opt",),
        attention=grouped_attention,
        feed_forward=opt_mlp,
        qkv_bias=True,
        output_bias=True,
        derives_kv_heads=True,
        norm_vectors=2,
        extra_positions=2,
        tied=True,
        only={
            "enable_bias": True,
            "do_layer_norm_before": True,
            "_remove_final_layer_norm": False,
            "layer_norm_elementwise_affine": True,
        },
    ),
    Family(
        architecture="LlamaForCausalLM",
        model_types=("llama",),
        attention=grouped_attention,
        feed_forward=gated_mlp,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        derives_kv_heads=True,
    ),
    Family(
        architecture="MistralForCausalLM",
        model_types=("mistral",),
        attention=grouped_attention,
        feed_forward=gated_mlp,
        window=4096,
        only={"mlp_bias": False, "attention_bias": False},
    ),
    Family(
        architecture="MixtralForCausalLM",
        model_types=("mixtral",),
        attention=grouped_attention,
        feed_forward=mixtral_experts,
        only={"attention_bias": False},
    ),
    Family(
        architecture="Qwen2ForCausalLM",
        model_types=("qwen2",),
        attention=grouped_attention,
        feed_forward=gated_mlp,
        qkv_bias=True,
        window_switch=True,
        only={"mlp_bias": False, "attention_bias": True},
    ),
    Family(
        architecture="Qwen3ForCausalLM",
        model_types=("qwen3",),
        attention=grouped_attention,
        feed_forward=gated_mlp,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        qk_norm="head",
        derives_head_dim=False,
        window_switch=True,
        only={"mlp_bias": False},
    ),
    Family(
        architecture="Qwen3MoeForCausalLM",
        model_types=("qwen3_moe",),
        attention=grouped_attention,
        feed_forward=qwen_experts,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        qk_norm="head",
        derives_head_dim=False,
        window_switch=True,
        only={"decoder_sparse_step": 1, "mlp_only_layers": []},
    ),
    Family(
        architecture="MiMoForCausalLM",
        model_types=("mimo",),
        attention=grouped_attention,
        feed_forward=gated_mlp,
        qkv_bias=True,
        window_switch=True,
        only={"mlp_bias": False, "attention_bias": True},
    ),
    Family(
        architecture="Phi3ForCausalLM",
        model_types=("phi3",),
        attention=grouped_attention,
        feed_forward=gated_mlp,
        derives_kv_heads=True,
        only={"mlp_bias": False, "attention_bias": False, "lm_head_bias": False},
    ),
    Family(
        architecture="Olmo2ForCausalLM",
        model_types=("olmo2",),
        attention=grouped_attention,
        feed_forward=gated_mlp,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        qk_norm="all",
        derives_kv_heads=True,
        only={"mlp_bias": False},
    ),
    Family(
        architecture="DeepseekV2ForCausalLM",
        model_types=("deepseek_v2",),
        attention=latent_attention,
        feed_forward=deepseek_experts,
        output_bias="attention_bias",
        only={"moe_layer_freq": 1, "mlp_bias": False},
    ),
    Family(
        architecture="DeepseekV3ForCausalLM",
        model_types=("deepseek_v3", "kimi_k2"),
        attention=latent_attention,
        feed_forward=deepseek_experts,
        output_bias="attention_bias",
        only={"moe_layer_freq": 1, "mlp_bias": False},
    ),
)
"""The families that are read; anything else is refused."""


def family_of(config: Fields) -> Family:
    """The family that ``architectures`` names, or ``model_type`` where that is absent.

    Raises:
      InputError: neither is there, the family is not known, or the two contradict each other.
    """
    names, model_type = config.get("architectures"), config.get("model_type")
    known = ", ".join(f.architecture for f in FAMILIES)
    if names is None and model_type is None:
        raise config.error("architectures", f"is missing; known are {known}")
    if names is None:
        field, value = "model_type", model_type
        found = [f for f in FAMILIES if model_type in f.model_types]
    else:
        field, value = "architectures", names
        if not isinstance(names, list) or len(names) != 1:
            raise config.error(field, f"is {shown(names)}; it must be a list with one name")
        found = [f for f in FAMILIES if f.architecture == names[0]]
    if not found:
        raise config.error(field, f"{shown(value)} is not a known family; known are {known}")
    family = found[0]
    if model_type is not None and model_type not in family.model_types:
        raise config.error(
            "model_type",
            f"is {shown(model_type)}, which does not belong to {family.architecture}; "
            f"that has {' or '.join(family.model_types)}",
        )
    return family
