"""Families of language models: how the fields of a config turn into parameters, KV and FLOP.

A family is a row of `FAMILIES`: which formulas its mixers and its feed-forward parts follow, and
the habits of its reference implementation (biases, norms, defaults of absent fields). Adding a
family with known parts is one more row; a new kind of part is one function.

Source of the shapes and of the defaults: the modelling code of each family in Hugging Face
transformers (4.57, and 5 for the newer ones), and for DeepSeek, MiniMax and Step the code
published with the weights or in serving engines.

Ignores: layers for predicting several tokens at once (``num_nextn_predict_layers``), which plain
decoding does not use; encoders of images and sound.
"""

from typing import Any

from fluidserve.io import attention as attend
from fluidserve.io import feed_forward as feed
from fluidserve.io.family import Family
from fluidserve.io.fields import Fields, shown


def _head_norms(config: Fields) -> str:
    """Norms one head wide where ``use_qk_norm`` says so."""
    return "head" if config.flag("use_qk_norm", False) else ""


def _all_norms(config: Fields) -> str:
    """Norms over all heads where ``use_qk_norm`` says so."""
    return "all" if config.flag("use_qk_norm", False) else ""


_QWEN3: dict[str, Any] = dict(
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    qk_norm="head",
    derives_head_dim=False,
    window_switch=True,
)
_QWEN3_NEXT: dict[str, Any] = dict(
    attention=attend.delta_attention,
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    qk_norm="head",
    gated=True,
    derives_head_dim=False,
    uses=("full_attention_interval", "linear_num_key_heads"),
)
_MIXTURE: dict[str, Any] = {"decoder_sparse_step": 1, "mlp_only_layers": []}
_DEEPSEEK: dict[str, Any] = dict(
    output_bias="attention_bias", only={"moe_layer_freq": 1, "mlp_bias": False}
)

FAMILIES: tuple[Family, ...] = (
    Family(
        architecture="OPTForCausalLM",
        model_types=("opt",),
        attention=attend.grouped_attention,
        feed_forward=feed.opt_mlp,
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
        attention=attend.grouped_attention,
        feed_forward=feed.gated_mlp,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        derives_kv_heads=True,
    ),
    Family(
        architecture="Llama4ForCausalLM",
        model_types=("llama4_text", "llama4"),
        wrappers=("Llama4ForConditionalGeneration",),
        attention=attend.grouped_attention,
        feed_forward=feed.llama4_experts,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        window_field="attention_chunk_size",
        window=8192,
        windowed=attend.rotary_layers,
        only={"interleave_moe_layer_step": 1},
        uses=("attention_chunk_size",),
        notes=("chunked attention counts as a sliding window of the same length",),
    ),
    Family(
        architecture="MistralForCausalLM",
        model_types=("mistral",),
        attention=attend.grouped_attention,
        feed_forward=feed.gated_mlp,
        window=4096,
        only={"mlp_bias": False, "attention_bias": False},
    ),
    Family(
        architecture="MixtralForCausalLM",
        model_types=("mixtral",),
        attention=attend.grouped_attention,
        feed_forward=feed.mixtral_experts,
        only={"attention_bias": False},
    ),
    Family(
        architecture="Qwen2ForCausalLM",
        model_types=("qwen2",),
        attention=attend.grouped_attention,
        feed_forward=feed.gated_mlp,
        qkv_bias=True,
        window_switch=True,
        only={"mlp_bias": False, "attention_bias": True},
    ),
    Family(
        architecture="Qwen3ForCausalLM",
        model_types=("qwen3", "qwen3_vl_text", "qwen3_vl"),
        wrappers=("Qwen3VLForConditionalGeneration",),
        attention=attend.grouped_attention,
        feed_forward=feed.gated_mlp,
        only={"mlp_bias": False},
        **_QWEN3,
    ),
    Family(
        architecture="Qwen3MoeForCausalLM",
        model_types=("qwen3_moe", "qwen3_vl_moe_text", "qwen3_vl_moe"),
        wrappers=("Qwen3VLMoeForConditionalGeneration",),
        attention=attend.grouped_attention,
        feed_forward=feed.qwen_experts,
        only=_MIXTURE,
        **_QWEN3,
    ),
    Family(
        architecture="Qwen3NextForCausalLM",
        model_types=("qwen3_next",),
        feed_forward=feed.qwen_experts,
        only=_MIXTURE,
        **_QWEN3_NEXT,
    ),
    Family(
        architecture="Qwen3_5ForCausalLM",
        model_types=("qwen3_5_text", "qwen3_5"),
        wrappers=("Qwen3_5ForConditionalGeneration",),
        feed_forward=feed.gated_mlp,
        only={"attn_output_gate": True},
        **_QWEN3_NEXT,
    ),
    Family(
        architecture="Qwen3_5MoeForCausalLM",
        model_types=("qwen3_5_moe_text", "qwen3_5_moe"),
        wrappers=("Qwen3_5MoeForConditionalGeneration",),
        feed_forward=feed.qwen_experts,
        only=_MIXTURE | {"attn_output_gate": True},
        **_QWEN3_NEXT,
    ),
    Family(
        architecture="MiMoForCausalLM",
        model_types=("mimo",),
        attention=attend.grouped_attention,
        feed_forward=feed.gated_mlp,
        qkv_bias=True,
        window_switch=True,
        only={"mlp_bias": False, "attention_bias": True},
    ),
    Family(
        architecture="Phi3ForCausalLM",
        model_types=("phi3",),
        attention=attend.grouped_attention,
        feed_forward=feed.gated_mlp,
        derives_kv_heads=True,
        only={"mlp_bias": False, "attention_bias": False, "lm_head_bias": False},
    ),
    Family(
        architecture="Olmo2ForCausalLM",
        model_types=("olmo2",),
        attention=attend.grouped_attention,
        feed_forward=feed.gated_mlp,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        qk_norm="all",
        derives_kv_heads=True,
        only={"mlp_bias": False},
    ),
    Family(
        architecture="Gemma2ForCausalLM",
        model_types=("gemma2",),
        attention=attend.grouped_attention,
        feed_forward=feed.gated_mlp,
        norms=4,
        tied=True,
        windowed=attend.even_layers,
        only={"attention_bias": False},
    ),
    Family(
        architecture="Gemma3ForCausalLM",
        model_types=("gemma3_text", "gemma3"),
        wrappers=("Gemma3ForConditionalGeneration",),
        attention=attend.grouped_attention,
        feed_forward=feed.gated_mlp,
        qk_norm="head",
        derives_head_dim=False,
        norms=4,
        tied=True,
        windowed=attend.all_but_every_sixth,
        only={"attention_bias": False},
    ),
    Family(
        architecture="Gemma4ForCausalLM",
        model_types=("gemma4_text", "gemma4"),
        wrappers=("Gemma4ForConditionalGeneration",),
        attention=attend.gemma4_attention,
        feed_forward=feed.gemma4_feed_forward,
        qk_norm="head",
        derives_head_dim=False,
        norms=4,
        tied=True,
        windowed=attend.all_but_every_sixth,
        only={
            "attention_bias": False,
            "hidden_size_per_layer_input": 0,
            "use_double_wide_mlp": False,
        },
    ),
    Family(
        architecture="GptOssForCausalLM",
        model_types=("gpt_oss",),
        attention=attend.grouped_attention,
        feed_forward=feed.gpt_oss_experts,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        sinks=True,
        derives_head_dim=False,
        windowed=attend.even_layers,
    ),
    Family(
        architecture="Glm4MoeForCausalLM",
        model_types=("glm4_moe",),
        attention=attend.grouped_attention,
        feed_forward=feed.glm_experts,
        qkv_bias="attention_bias",
        qk_norm=_head_norms,
        derives_head_dim=False,
    ),
    Family(
        architecture="MiniMaxM2ForCausalLM",
        model_types=("minimax_m2",),
        attention=attend.grouped_attention,
        feed_forward=feed.mixtral_experts,
        qk_norm=_all_norms,
        derives_head_dim=False,
        only={"qk_norm_type": "per_layer"},
    ),
    Family(
        architecture="MiniMaxM3ForCausalLM",
        model_types=("minimax_m3",),
        attention=attend.block_sparse_attention,
        feed_forward=feed.minimax_experts,
        qk_norm=_head_norms,
        derives_head_dim=False,
        only={"qk_norm_type": "per_head", "attention_output_gate": False},
        uses=("sparse_attention_config",),
    ),
    Family(
        architecture="Step3p7FlashForCausalLM",
        model_types=("step3p7",),
        attention=attend.grouped_attention,
        feed_forward=feed.step_experts,
        qk_norm="head",
        derives_head_dim=False,
    ),
    Family(
        architecture="NemotronHForCausalLM",
        model_types=("nemotron_h",),
        attention=attend.hybrid_attention,
        feed_forward=feed.nemotron_feed_forward,
        blocks=attend.nemotron_blocks,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        norms=1,
        only={"mlp_bias": False, "use_bias": False, "mamba_proj_bias": False},
        uses=("hybrid_override_pattern", "layers_block_type", "mamba_num_heads"),
    ),
    Family(
        architecture="DeepseekV2ForCausalLM",
        model_types=("deepseek_v2",),
        attention=attend.latent_attention,
        feed_forward=feed.deepseek_experts,
        **_DEEPSEEK,
    ),
    Family(
        architecture="DeepseekV3ForCausalLM",
        model_types=("deepseek_v3", "kimi_k2", "kimi_k25"),
        wrappers=("KimiK25ForConditionalGeneration",),
        attention=attend.latent_attention,
        feed_forward=feed.deepseek_experts,
        **_DEEPSEEK,
    ),
    Family(
        architecture="DeepseekV32ForCausalLM",
        model_types=("deepseek_v32",),
        attention=attend.latent_attention,
        feed_forward=feed.deepseek_experts,
        indexed=True,
        uses=("index_topk",),
        **_DEEPSEEK,
    ),
    Family(
        architecture="GlmMoeDsaForCausalLM",
        model_types=("glm_moe_dsa",),
        attention=attend.latent_attention,
        feed_forward=feed.deepseek_experts,
        indexed=True,
        uses=("index_topk", "indexer_types"),
        **_DEEPSEEK,
    ),
    Family(
        architecture="DeepseekV4ForCausalLM",
        model_types=("deepseek_v4", "deepseek_ref"),
        attention=attend.compressed_attention,
        feed_forward=feed.hashed_experts,
        uses=("index_topk", "compress_ratios"),
        notes=("the window of raw keys counts as state, full from the first token on",),
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
        found = [f for f in FAMILIES if names[0] in (f.architecture, *f.wrappers)]
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
