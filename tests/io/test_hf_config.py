import json
from pathlib import Path

import jax
import pytest
from public_data import config_files, model_rows, needs_data

from fluidserve.errors import InputError
from fluidserve.io.families import FAMILIES
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
READ_FAMILIES = {family.architecture for family in FAMILIES}


def covered_files() -> list[Path]:
    """Files of known families with a row; the one with a sliding window is refused on purpose."""
    rows = [(path, ROWS.get(path.name)) for path in config_files()]
    return [
        path
        for path, row in rows
        if row and row["architecture"] in READ_FAMILIES and not row["window"]
    ]


@needs_data
def test_folder_covers_the_families():
    assert len(covered_files()) >= 20


@needs_data
@pytest.mark.parametrize("path", covered_files(), ids=lambda path: path.name)
def test_counts_agree_with_the_table(path):
    model, row = read_model(path), ROWS[path.name]
    total = float(row["params_total_B_computed"]) * 1e9
    active = float(row["params_active_B_computed"]) * 1e9
    assert model.parameters == pytest.approx(total, rel=0.01)
    assert model.active_parameters == pytest.approx(active, rel=0.01)
    assert model.kv_bytes_per_token == float(row["kv_bytes_per_token_bf16_full_layers"])
    assert model.attention == row["attention"]


@needs_data
@pytest.mark.parametrize("path", config_files(), ids=lambda path: path.name)
def test_every_config_is_read_or_refused_by_field(path):
    if path in covered_files():
        assert read_model(path).parameters > 0
        return
    with pytest.raises(InputError) as caught:
        read_model(path)
    message = str(caught.value)
    field = message.removeprefix(f"{path}: ").split(":")[0]
    assert field in json.loads(path.read_text()) or field == "sliding_window"
    assert "\n" not in message


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
    assert model.weight_bytes == model.parameters


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
    assert len(leaves) == 15
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
        ("int4", "int4", 0.5),
        ("fp4", "fp4", 0.5),
    ],
)
def test_weight_dtype_can_be_asked_for(asked, stored, bytes_per_weight):
    model = read_model(LLAMA, weight_dtype=asked)
    assert model.weight_dtype == stored
    assert model.weight_bytes == model.parameters * bytes_per_weight
    assert model.kv_bytes_per_token == 131072


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
    with pytest.raises(InputError, match="sliding_window: is 4096 tokens"):
        read_model(MISTRAL)
    assert read_model(MISTRAL | {"sliding_window": None}).kv_window_bytes == 0


def test_window_as_long_as_the_context_is_none():
    assert read_model(MISTRAL | {"sliding_window": 131072}).attention == "GQA"


def test_switched_off_window_is_none():
    config = QWEN3 | {"head_dim": 128, "sliding_window": 4096, "use_sliding_window": False}
    assert read_model(config).kv_window_bytes == 0


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
    "window in use": (MISTRAL | {"sliding_window": 4096}, "sliding_window"),
    "window as text": (MISTRAL | {"sliding_window": "4k"}, "sliding_window"),
    "switched on window": (
        QWEN3 | {"head_dim": 128, "use_sliding_window": True, "sliding_window": 4096},
        "use_sliding_window",
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
    "awq": (LLAMA | {"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
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
    assert read_model(path, weight_dtype="fp8").weight_dtype == "fp8"
