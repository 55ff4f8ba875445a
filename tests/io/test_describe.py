import json

from fluidserve.io.catalog import find_model
from fluidserve.io.describe import describe_gpu, describe_model


def test_model_is_described_in_whole_numbers():
    described = describe_model(find_model("OPT-13B"))
    assert described["kv_bytes_per_token"] == 819200
    assert described["attention"] == "MHA"
    assert described["layers"] == 40
    assert described["kv_window_bytes"] == 0
    assert described["flop_per_token"] == 2 * described["active_parameters"]
    assert described["attention_flop_per_pair"] == 4 * 40 * 5120
    assert described["notes"] == []
    assert all(isinstance(value, int | str | list) for value in described.values())
    assert json.loads(json.dumps(described)) == described


def test_model_keys():
    keys = """name architecture parameters active_parameters weight_dtype weight_bytes kv_dtype
    kv_bytes_per_token kv_window_bytes layers attention hidden heads kv_heads head_dim experts
    experts_per_token max_positions flop_per_token attention_flop_per_pair window state_bytes
    index_bytes_per_token sparse_tokens compute_dtype notes"""
    assert set(keys.split()) <= set(describe_model(find_model("DeepSeek-V3")))


def test_gpu_has_value_unit_and_source():
    described = describe_gpu("a100")
    assert described["name"] == "A100-SXM4-80GB"
    bandwidth = described["numbers"]["bandwidth"]
    assert (bandwidth["value"], bandwidth["unit"]) == (2039e9, "B/s")
    assert described["numbers"]["gpus_per_node"]["unit"] == "1"
    for number in described["numbers"].values():
        assert number["value"] > 0
        assert number["source"]
    assert json.loads(json.dumps(described)) == described
