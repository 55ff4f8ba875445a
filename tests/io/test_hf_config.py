import json
from pathlib import Path

import jax
import pytest
from public_data import config_files, model_rows, needs_data

from fluidserve.errors import InputError
from fluidserve.io.hf_config import read_model

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
QWEN3 = LLAMA | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
MIXTRAL = MISTRAL | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
OPT = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "hidden_size": 5120,
    "ffn_dim": 20480,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
    "torch_dtype": "float16",
}
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "first_k_dense_replace": 3,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "topk_method": "noaux_tc",
    "num_nextn_predict_layers": 1,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}


def without(config: dict, *fields: str) -> dict:
    return {key: value for key, value in config.items() if key not in fields}


# Against the public table of models.

ROWS = {row["raw_config_file"]: row for row in model_rows() if row["raw_config_file"]}
INCONSISTENT = {
    "Qwen--Qwen3-Next-80B-A3B-Instruct": "takes linear layers for attention: KV and active count",
    "deepseek-ai--DeepSeek-V3.2": "leaves the index's own parameters out of the active count",
    "zai-org--GLM-5-FP8": "as DeepSeek-V3.2",
    "zai-org--GLM-5.1": "as DeepSeek-V3.2",
    "zai-org--GLM-5": "as DeepSeek-V3.2",
}
"""Rows that contradict the config beside them, and how; they are compared in what remains."""
STATED = {
    "Qwen--Qwen3-Next-80B-A3B-Instruct": (80, 3),
    "Qwen--Qwen3.5-122B-A10B": (122, 10),
    "Qwen--Qwen3.5-27B": (27, 27),
    "Qwen--Qwen3.5-397B-A17B": (397, 17),
    "google--gemma-4-26B-A4B": (25.2, 3.8),
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (31.6, 3.6),
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8": (120, 12.7),
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": (550, 55),
    "nvidia--Nemotron-H-56B-Base-8K": (56, 56),
    "deepseek-ai--DeepSeek-V4-Flash": (284, 13),
    "sgl-project--DeepSeek-V4-Pro-FP8": (1600, 49),
    "stepfun-ai--Step-3.7-Flash": (196, 11),
    "MiniMaxAI--MiniMax-M3": (428, 23),
}
"""Billions of parameters, and of active ones, that the models' names and cards state."""


def read_any(path):
    """A model; in 16 bits where the file does not say what its weights are stored in."""
    silent = path.name.startswith("zai-org--GLM-4.6")
    return read_model(path, weight_dtype="bf16" if silent else None, kv_dtype="bf16")


def stem(path: Path) -> str:
    return path.name.removesuffix("_config.json")


@needs_data
def test_folder_is_whole():
    assert len(config_files()) == 63


@needs_data
@pytest.mark.parametrize("path", config_files(), ids=stem)
def test_counts_agree_with_the_table(path):
    model, row = read_any(path), ROWS.get(path.name)
    assert 0 < model.active_parameters <= model.parameters
    if row is None:
        return
    wrong = INCONSISTENT.get(stem(path), "")
    if row["params_total_B_computed"]:
        total = float(row["params_total_B_computed"]) * 1e9
        assert model.parameters == pytest.approx(total, rel=0.01)
    if row["params_active_B_computed"] and not wrong:
        active = float(row["params_active_B_computed"]) * 1e9
        assert model.active_parameters == pytest.approx(active, rel=0.01)
    if row["kv_bytes_per_token_bf16_full_layers"] and "KV" not in wrong:
        assert model.kv_bytes_per_token == float(row["kv_bytes_per_token_bf16_full_layers"])
        everything = model.kv_bytes_per_token
        everything += model.kv_window_bytes / model.window if model.window else 0
        assert everything == float(row["kv_bytes_per_token_bf16_all_layers"])
        assert model.attention == row["attention"]
    assert model.kv_window_bytes == float(row["kv_bytes_window_cap_bf16"])


@needs_data
@pytest.mark.parametrize("path", config_files(), ids=stem)
def test_rows_called_inconsistent_are(path):
    wrong, row = INCONSISTENT.get(stem(path)), ROWS.get(path.name)
    if wrong is None or row is None:
        return
    active = float(row["params_active_B_computed"]) * 1e9
    assert read_any(path).active_parameters != pytest.approx(active, rel=0.01)


@needs_data
@pytest.mark.parametrize("path", [p for p in config_files() if stem(p) in STATED], ids=stem)
def test_counts_agree_with_what_is_stated(path):
    """Cards round to whole billions, and some leave embeddings out of the active count."""
    model, (total, active) = read_any(path), STATED[stem(path)]
    assert model.parameters == pytest.approx(total * 1e9, rel=0.02)
    tables = model.embedding_parameters + model.head_parameters
    assert model.active_parameters - tables <= active * 1.1e9
    assert model.active_parameters >= active * 0.97e9


@needs_data
def test_a_file_that_says_no_format_is_refused():
    (path,) = [p for p in config_files() if p.name.startswith("zai-org--GLM-4.6")]
    with pytest.raises(InputError, match="torch_dtype: is missing"):
        read_model(path)


# Bytes of checkpoints as published, within what headers and norms in 32 bits add.
@needs_data
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("openai--gpt-oss-120b", 65.25e9),  # 60.8 GiB, model card of gpt-oss
        ("deepseek-ai--DeepSeek-R1", 673e9),  # 671B in 8 bits, tables and head in 16
        ("moonshotai--Kimi-K2.5", 594e9),  # int4 experts
    ],
)
def test_bytes_of_quantised_checkpoints(name, size):
    (path,) = [p for p in config_files() if stem(p) == name]
    assert read_model(path).weight_bytes == pytest.approx(size, rel=0.01)


# Parameters that the checkpoints' own metadata state, to the last one.
@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (LLAMA, 8_030_261_248),  # meta-llama/Llama-3.1-8B
        (MISTRAL | {"vocab_size": 32768, "sliding_window": None}, 7_248_023_552),  # 7B v0.3
        (MIXTRAL, 46_702_792_704),  # mistralai/Mixtral-8x7B-v0.1
    ],
)
def test_counts_are_exact(config, parameters):
    assert read_model(config).parameters == parameters


def test_opt_by_hand():
    model = read_model(OPT)
    h = 5120
    attention = 4 * (h * h + h)
    ffn = 2 * h * 4 * h + 4 * h + h
    layer = attention + ffn + 2 * 2 * h
    assert model.parameters == 40 * layer + 50272 * h + 2050 * h + 2 * h
    assert model.embedding_parameters == 2050 * h
    assert model.head_parameters == 50272 * h
    assert model.attention == "MHA"
    assert model.attention_flop == 4 * 40 * h
    assert model.active_parameters == model.parameters


def test_deepseek_v3():
    model = read_model(DEEPSEEK)
    assert model.parameters == pytest.approx(671e9, rel=0.001)  # DeepSeek-V3 report: 671B
    assert model.active_parameters == pytest.approx(37e9, rel=0.02)  # of which 37B activated
    assert model.expert_parameters == 58 * 256 * 3 * 7168 * 2048
    assert model.kv_bytes_per_token == 61 * (512 + 64) * 2
    assert model.kv_heads == 1
    assert model.head_dim == 192
    assert model.attention == "MLA"
    assert model.attention_flop == 2 * 61 * 128 * (192 + 128)
    assert model.intermediate == 9 * 2048
    assert (model.weight_dtype, model.kv_dtype) == ("fp8", "bfloat16")
    assert model.notes == ("layers that predict several tokens at once are not counted",)
    linear = model.weight_bytes - 2 * 2 * 129280 * 7168
    assert linear == pytest.approx(model.parameters - 2 * 129280 * 7168, rel=1e-3)
    assert model.compute_dtype == "fp8"


def test_prediction_layers_are_not_counted():
    plain = read_model(without(DEEPSEEK, "num_nextn_predict_layers"))
    assert read_model(DEEPSEEK).parameters == plain.parameters


def test_absent_query_rank_means_uncompressed_queries():
    model = read_model(without(DEEPSEEK, "q_lora_rank"))
    compressed = 7168 * 1536 + 1536 + 1536 * 128 * 192
    difference = 61 * (7168 * 128 * 192 - compressed)
    assert model.parameters - read_model(DEEPSEEK).parameters == difference


def test_tied_embedding_is_counted_once():
    tied = read_model(LLAMA | {"tie_word_embeddings": True})
    untied = read_model(LLAMA)
    table = 128256 * 4096
    assert untied.parameters - tied.parameters == table
    assert (tied.embedding_parameters, tied.head_parameters) == (0, table)
    assert (untied.embedding_parameters, untied.head_parameters) == (table, table)


@pytest.mark.parametrize(("kv_heads", "kind"), [(32, "MHA"), (8, "GQA"), (1, "MQA")])
def test_kind_of_attention(kv_heads, kind):
    model = read_model(LLAMA | {"num_key_value_heads": kv_heads})
    assert model.attention == kind
    assert model.kv_bytes_per_token == 32 * 2 * kv_heads * 128 * 2


def test_biases_of_llama():
    model = read_model(LLAMA | {"attention_bias": True, "mlp_bias": True})
    per_layer = (4096 + 2 * 1024) + 4096 + (2 * 14336 + 4096)
    assert model.parameters == 8_030_261_248 + 32 * per_layer


def test_mixture():
    model = read_model(MIXTRAL)
    expert = 3 * 4096 * 14336
    assert model.expert_parameters == 32 * 8 * expert
    assert model.parameters - model.active_parameters == 32 * 6 * expert
    assert (model.experts, model.experts_per_token) == (8, 2)
    assert model.intermediate == 2 * 14336


def test_spec_is_a_pytree():
    leaves = jax.tree.leaves(read_model(LLAMA))
    assert len(leaves) == 17
    assert all(isinstance(leaf, float) for leaf in leaves)


# Number formats.


@pytest.mark.parametrize(
    ("asked", "stored", "bytes_per_weight"),
    [
        ("bf16", "bfloat16", 2),
        ("bfloat16", "bfloat16", 2),
        ("FP16", "float16", 2),
        ("fp8", "fp8", 1),
        ("int8", "int8", 1),
        ("int4", "int4", 0.5 + 2 / 128),
        ("fp4", "mxfp4", 0.5 + 1 / 32),
        ("nvfp4", "nvfp4", 0.5 + 1 / 16),
    ],
)
def test_weight_dtype_can_be_asked_for(asked, stored, bytes_per_weight):
    model = read_model(LLAMA, weight_dtype=asked)
    assert model.weight_dtype == stored
    outside = 2 * 128256 * 4096 + 65 * 4096  # tables and norms stay in 16 bits
    assert model.weight_bytes == (model.parameters - outside) * bytes_per_weight + 2 * outside
    assert model.kv_bytes_per_token == 131072
    assert model.compute_dtype == (stored if bytes_per_weight == 1 else "bfloat16")


@pytest.mark.parametrize(("asked", "size"), [("fp8", 65536), ("int8", 65536), ("fp16", 131072)])
def test_kv_dtype_can_be_asked_for(asked, size):
    assert read_model(LLAMA, kv_dtype=asked).kv_bytes_per_token == size


def test_float32_checkpoint_counts_as_stored():
    model = read_model(LLAMA | {"torch_dtype": "float32"})
    assert model.weight_bytes == 4 * model.parameters
    assert model.kv_dtype == "bfloat16"


def test_newer_spelling_of_the_dtype():
    config = without(LLAMA, "torch_dtype") | {"dtype": "float16"}
    assert read_model(config).weight_dtype == "float16"


def test_missing_dtype_needs_an_answer():
    config = without(LLAMA, "torch_dtype")
    with pytest.raises(InputError, match=r"torch_dtype.*weight_dtype"):
        read_model(config)
    assert read_model(config, weight_dtype="bf16").weight_dtype == "bfloat16"


@pytest.mark.parametrize("argument", ["weight_dtype", "kv_dtype"])
def test_unknown_format(argument):
    with pytest.raises(InputError, match=f"{argument}: 'fp7' must be one of bf16"):
        read_model(LLAMA, **{argument: "fp7"})


@pytest.mark.parametrize("kv_dtype", ["int4", "fp4"])
def test_four_bit_cache_is_refused(kv_dtype):
    with pytest.raises(InputError, match="kv_dtype"):
        read_model(LLAMA, kv_dtype=kv_dtype)


# Windows.


def test_absent_window_of_mistral_is_its_default():
    model = read_model(MISTRAL)
    assert (model.window, model.attention) == (4096, "GQA+SWA")
    assert model.kv_bytes_per_token == 0
    assert model.kv_window_bytes == 4096 * 131072
    assert model.limited_attention_flop == model.attention_flop
    assert read_model(MISTRAL | {"sliding_window": None}).kv_window_bytes == 0


def test_window_as_long_as_the_context_is_none():
    assert read_model(MISTRAL | {"sliding_window": 131072}).attention == "GQA"


def test_switched_off_window_is_none():
    config = QWEN3 | {"head_dim": 128, "sliding_window": 4096, "use_sliding_window": False}
    assert read_model(config).kv_window_bytes == 0


def test_switched_on_window_begins_at_a_layer():
    config = QWEN3 | {"head_dim": 128, "sliding_window": 4096, "use_sliding_window": True}
    model = read_model(config | {"max_window_layers": 28})
    assert model.kv_bytes_per_token == 28 * 4096
    assert model.kv_window_bytes == 4 * 4096 * 4096


def test_layer_types_say_where_windows_are():
    kinds = ["full_attention"] * 8 + ["sliding_attention"] * 24
    model = read_model(LLAMA | {"layer_types": kinds, "sliding_window": 1024})
    assert model.kv_bytes_per_token == 8 * 4096
    assert model.kv_window_bytes == 24 * 4096 * 1024
    assert model.limited_attention_flop == 0.75 * model.attention_flop


# Formats of quantised checkpoints.


@pytest.mark.parametrize(
    ("values", "stored", "size", "compute"),
    [
        ({"quant_method": "fbgemm_fp8"}, "fp8", 1, "fp8"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4", 0.515625, "bfloat16"),
        ({"quant_method": "gptq", "bits": 8}, "int8", 1, "bfloat16"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 0.5625, "bfloat16"),
    ],
)
def test_quantisation_methods(values, stored, size, compute):
    model = read_model(LLAMA | {"quantization_config": values})
    outside = 2 * 128256 * 4096 + 65 * 4096
    assert (model.weight_dtype, model.compute_dtype) == (stored, compute)
    assert model.weight_bytes == (model.parameters - outside) * size + 2 * outside


def compressed(weights: dict, **more) -> dict:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None} | more
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


def test_compressed_tensors():
    quick = compressed({"num_bits": 8, "type": "float"}, input_activations={"num_bits": 8})
    slow = compressed({"num_bits": 8, "type": "float"})
    cached = quick | {"kv_cache_scheme": {"num_bits": 8}}
    assert read_model(LLAMA | {"quantization_config": quick}).compute_dtype == "fp8"
    assert read_model(LLAMA | {"quantization_config": slow}).compute_dtype == "bfloat16"
    assert read_model(LLAMA | {"quantization_config": cached}).kv_dtype == "fp8"
    four = compressed({"num_bits": 4, "type": "int", "group_size": 32})
    assert read_model(LLAMA | {"quantization_config": four}).weight_dtype == "int4"


@pytest.mark.parametrize(
    ("exception", "layers"),
    [
        ("re:.*self_attn.*", 32),
        ("model.layers.*.self_attn", 32),
        ("model.layers.3.self_attn.o_proj", 1),
        ("self_attn", 32),
        ("lm_head", 0),
        ("model.layers.0", 1),
    ],
)
def test_exceptions_stay_in_16_bits(exception, layers):
    plain = {"quant_method": "fp8", "modules_to_not_convert": []}
    less = read_model(LLAMA | {"quantization_config": plain}).weight_bytes
    more = plain | {"modules_to_not_convert": [exception]}
    model = read_model(LLAMA | {"quantization_config": more})
    attention = 4096 * (2 * 4096 + 2 * 1024)
    whole = 3 * 4096 * 14336 if exception == "model.layers.0" else 0
    assert model.weight_bytes - less == pytest.approx(layers * (attention + whole))


# Wrong input; the message starts with the field.

WRONG = {
    "unknown architecture": (LLAMA | {"architectures": ["MambaForCausalLM"]}, "architectures"),
    "two architectures": (LLAMA | {"architectures": ["A", "B"]}, "architectures"),
    "architectures as text": (LLAMA | {"architectures": "LlamaForCausalLM"}, "architectures"),
    "no family at all": (without(LLAMA, "architectures", "model_type"), "architectures"),
    "unknown model type": (
        without(LLAMA, "architectures") | {"model_type": "mamba"},
        "model_type",
    ),
    "contradiction": (LLAMA | {"model_type": "mistral"}, "model_type"),
    "missing size": (without(LLAMA, "hidden_size"), "hidden_size"),
    "null size": (LLAMA | {"vocab_size": None}, "vocab_size"),
    "missing positions": (without(LLAMA, "max_position_embeddings"), "max_position_embeddings"),
    "missing KV heads": (
        without(MISTRAL, "num_key_value_heads") | {"sliding_window": None},
        "num_key_value_heads",
    ),
    "size as text": (LLAMA | {"hidden_size": "4096"}, "hidden_size"),
    "size as fraction": (LLAMA | {"hidden_size": 4096.5}, "hidden_size"),
    "size as list": (LLAMA | {"intermediate_size": [1, 2]}, "intermediate_size"),
    "size as truth": (LLAMA | {"num_hidden_layers": True}, "num_hidden_layers"),
    "zero": (LLAMA | {"num_hidden_layers": 0}, "num_hidden_layers"),
    "negative": (LLAMA | {"vocab_size": -1}, "vocab_size"),
    "absurd": (LLAMA | {"vocab_size": 10**30}, "vocab_size"),
    "infinite": (LLAMA | {"vocab_size": float("inf")}, "vocab_size"),
    "KV heads do not divide": (LLAMA | {"num_key_value_heads": 5}, "num_key_value_heads"),
    "heads do not divide hidden": (
        LLAMA | {"num_attention_heads": 24, "num_key_value_heads": 8},
        "num_attention_heads",
    ),
    "head_dim not derived": (QWEN3, "head_dim"),
    "switch as text": (LLAMA | {"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    "window as text": (MISTRAL | {"sliding_window": "4k"}, "sliding_window"),
    "switched on window without its first layer": (
        QWEN3 | {"head_dim": 128, "use_sliding_window": True, "sliding_window": 4096},
        "max_window_layers",
    ),
    "windows of no length": (
        LLAMA | {"layer_types": ["sliding_attention"] * 32},
        "sliding_window",
    ),
    "mixed layers": (
        LLAMA | {"layer_types": ["full_attention", "sliding_attention"]},
        "layer_types",
    ),
    "chunks": (LLAMA | {"attention_chunk_size": 8192}, "attention_chunk_size"),
    "linear layers": (LLAMA | {"full_attention_interval": 4}, "full_attention_interval"),
    "vision": (LLAMA | {"vision_config": {"depth": 2}}, "vision_config"),
    "wrapped": (LLAMA | {"text_config": {"hidden_size": 2}}, "text_config"),
    "sparse attention": (DEEPSEEK | {"index_topk": 2048}, "index_topk"),
    "encoder": (LLAMA | {"is_encoder_decoder": True}, "is_encoder_decoder"),
    "awq of unknown width": (
        LLAMA | {"quantization_config": {"quant_method": "awq"}},
        "quantization_config",
    ),
    "unknown method": (
        LLAMA | {"quantization_config": {"quant_method": "bitnet"}},
        "quantization_config",
    ),
    "two formats": (
        LLAMA
        | {
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {}, "b": {}},
            }
        },
        "quantization_config",
    ),
    "strange exception": (
        LLAMA | {"quantization_config": {"quant_method": "fp8", "ignore": [3]}},
        "quantization_config",
    ),
    "no method": (LLAMA | {"quantization_config": {}}, "quantization_config"),
    "method as text": (LLAMA | {"quantization_config": "fp8"}, "quantization_config"),
    "strange dtype": (LLAMA | {"torch_dtype": "float64"}, "torch_dtype"),
    "dtype as number": (LLAMA | {"torch_dtype": 16}, "torch_dtype"),
    "sparse step": (
        MIXTRAL
        | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
        | {"decoder_sparse_step": 2},
        "decoder_sparse_step",
    ),
    "more chosen than there are": (MIXTRAL | {"num_experts_per_tok": 9}, "num_experts_per_tok"),
    "more dense than layers": (DEEPSEEK | {"first_k_dense_replace": 62}, "first_k_dense_replace"),
    "no shared count": (without(DEEPSEEK, "n_shared_experts"), "n_shared_experts"),
    "norm after": (OPT | {"do_layer_norm_before": False}, "do_layer_norm_before"),
    "projected embedding": (OPT | {"word_embed_proj_dim": 512}, "word_embed_proj_dim"),
}


@pytest.mark.parametrize(("config", "field"), WRONG.values(), ids=WRONG.keys())
def test_wrong_field_is_named(config, field):
    with pytest.raises(InputError) as caught:
        read_model(config, name="m")
    assert str(caught.value).startswith(f"m: {field}: ")
    assert "\n" not in str(caught.value)


# Files.


def test_file_and_directory(tmp_path):
    folder = tmp_path / "My-Llama"
    folder.mkdir()
    path = folder / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8")
    assert read_model(folder).name == "My-Llama"
    assert read_model(path) == read_model(str(folder))
    assert read_model(path, name="other").name == "other"
    assert read_model(path).parameters == read_model(LLAMA).parameters


def test_name_of_a_lone_file(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8-sig")
    assert read_model(path).name == "mine"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"\x80\x02\xff\xfe\x00", "is not text"),
        (b"{not json", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[1, 2]", "no JSON object"),
        (b'"text"', "no JSON object"),
        (b"null", "no JSON object"),
        (b"{}", "architectures: is missing"),
    ],
)
def test_wrong_file(tmp_path, content, says):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=says) as caught:
        read_model(path)
    assert str(caught.value).startswith(str(path))


def test_missing_path(tmp_path):
    with pytest.raises(InputError, match=r"none\.json: no such file"):
        read_model(tmp_path / "none.json")
    with pytest.raises(InputError, match=r"config\.json: no such file"):
        read_model(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        read_model("x" * 5000)


def test_huge_file(tmp_path):
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.truncate(10**9)
    with pytest.raises(InputError, match="too large"):
        read_model(path)


def test_quantised_by_a_file_beside_it(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8")
    (tmp_path / "hf_quant_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=r"hf_quant_config\.json"):
        read_model(path)
    says = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(says), encoding="utf-8")
    model = read_model(path)
    assert (model.weight_dtype, model.kv_dtype) == ("fp8", "fp8")
