import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from public_data import config_files, model_rows, needs_data

from fluidserve.errors import InputError
from fluidserve.io import catalog
from fluidserve.io.catalog import (
    GPU_UNITS,
    find_gpu,
    find_model,
    gpu_names,
    gpu_sources,
    model_names,
    model_source,
)
from fluidserve.io.names import joined, normal_gpu_name, normal_model_name, normal_name
from fluidserve.timing.profile import load_profile, shipped_profiles

MIB = 2**20

# Models.


@pytest.mark.parametrize("name", model_names())
def test_every_model_is_read_and_sourced(name):
    model = find_model(name)
    assert model.name == name
    assert model.parameters >= model.active_parameters > 0
    assert model_source(name).strip()


# Lecture facts on OPT, and the weights that follow from its size.
@pytest.mark.parametrize(
    ("name", "kv_mib"),
    [("OPT-13B", 800 / 1024), ("OPT-66B", 2.25), ("OPT-175B", 4.5), ("Llama-3.1-70B", 0.3125)],
)
def test_kv_per_token(name, kv_mib):
    assert find_model(name).kv_bytes_per_token == kv_mib * MIB


def test_weights_of_opt_175b():
    assert find_model("opt-175b").weight_bytes == pytest.approx(350e9, rel=0.01)


def _rows_of_the_catalog():
    known = {normal_model_name(n): m.name for m in catalog._models() for n in (m.name, *m.aliases)}
    pairs = [(known.get(normal_model_name(row["model"])), row) for row in model_rows()]
    return [(name, row) for name, row in pairs if name]


@needs_data
def test_most_of_the_catalog_has_a_row():
    assert len({name for name, _ in _rows_of_the_catalog()}) >= 50


@needs_data
@pytest.mark.parametrize(
    ("name", "row"), _rows_of_the_catalog(), ids=lambda x: x if isinstance(x, str) else x["model"]
)
def test_catalog_agrees_with_the_table(name, row):
    model = find_model(name)
    if row["params_total_B_computed"]:
        total = float(row["params_total_B_computed"]) * 1e9
        assert model.parameters == pytest.approx(total, rel=0.01)
    if row["kv_bytes_per_token_bf16_full_layers"] and name != "Qwen3-Next-80B-A3B":
        assert model.kv_bytes_per_token == float(row["kv_bytes_per_token_bf16_full_layers"])
    assert model.kv_window_bytes == float(row["kv_bytes_window_cap_bf16"])
    for field in ("hidden", "layers", "heads"):
        assert getattr(model, field) == int(row[field])


@needs_data
def test_catalog_equals_the_published_files():
    checked = 0
    for path in config_files():
        name = path.name.removesuffix("_config.json").split("--")[1]
        if joined(normal_model_name(name)) in catalog._model_index():
            entry, file = find_model(name, kv_dtype="bf16"), find_model(path, kv_dtype="bf16")
            assert entry.parameters == file.parameters
            assert entry.weight_bytes == file.weight_bytes
            checked += 1
    assert checked >= 35


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("opt-13b", "OPT-13B"),
        ("opt13b", "OPT-13B"),
        ("OPT_13B", "OPT-13B"),
        ("facebook/opt-13b", "OPT-13B"),
        ("opt 66b", "OPT-66B"),
        ("meta-llama/Llama-2-7b-chat-hf", "Llama-2-7B"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("llama-3.1-405b", "Llama-3.1-405B"),
        ("Llama-3.3-70B-Instruct", "Llama-3.3-70B"),
        ("qwen3-30b-a3b", "Qwen3-30B-A3B"),
        ("Qwen/Qwen2.5-72B-Instruct", "Qwen2.5-72B"),
        ("mistral-7b", "Mistral-7B"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "Mistral-7B"),
        ("mistral_large", "Mistral-Large"),
        ("mixtral-8x7b", "Mixtral-8x7B"),
        ("deepseek_v3", "DeepSeek-V3"),
        ("deepseek-ai/DeepSeek-R1", "DeepSeek-R1"),
    ],
)
def test_model_aliases(written, name):
    assert find_model(written).name == name


def test_models_wanted_are_there():
    assert len(model_names()) >= 70
    wanted = """gpt-oss-20b gpt-oss-120b Qwen3-Next-80B-A3B Qwen3.5-27B Gemma-2-9B Gemma-3-27B
    Gemma-4-26B-A4B Kimi-K2 Kimi-K2.5 DeepSeek-V3.2 DeepSeek-V4-Flash GLM-4.5 GLM-4.5-Air GLM-5
    Llama-4-Scout Nemotron-3-Nano-30B-A3B MiniMax-M2.5 MiniMax-M3 Step-3.7-Flash Mistral-7B-v0.1
    OPT-13B OPT-66B OPT-175B Llama-2-7B Llama-2-13B Llama-2-70B Llama-3-8B Llama-3-70B
    Llama-3.1-8B Llama-3.1-70B Llama-3.1-405B Llama-3.3-70B Qwen2.5-7B Qwen2.5-14B Qwen2.5-32B
    Qwen2.5-72B Qwen3-1.7B Qwen3-4B Qwen3-8B Qwen3-14B Qwen3-32B Qwen3-30B-A3B Qwen3-235B-A22B
    Mistral-7B Mistral-Large Mixtral-8x7B Mixtral-8x22B DeepSeek-V3 DeepSeek-R1"""
    assert set(wanted.split()) <= set(model_names())


def test_no_two_models_share_a_name():
    names = [
        (normal_model_name(name), model.name)
        for model in catalog._models()
        for name in {model.name, *model.aliases}
    ]
    assert len({name for name, _ in names}) == len(set(names))


def test_formats_reach_the_catalog():
    model = find_model("llama-3.1-70b", weight_dtype="fp8", kv_dtype="fp8")
    assert 1.0 < model.weight_bytes / model.parameters < 1.04
    assert model.kv_bytes_per_token == 0.3125 * MIB / 2


@pytest.mark.parametrize(
    ("written", "close"),
    [("opt-14b", "OPT-13B"), ("llama-3.1-80b", "Llama-3.1-8B"), ("Mistral-7B-v0.2", "Mistral-7B")],
)
def test_near_miss_is_suggested(written, close):
    with pytest.raises(InputError, match=rf"{re.escape(written)}.*did you mean.*{close}"):
        find_model(written)


@pytest.mark.parametrize("written", ["", "zzzzzz", "x" * 5000, "a\0b"])
def test_far_miss_lists_the_catalog(written):
    with pytest.raises(InputError, match=r"known are.*OPT-13B"):
        find_model(written)


def test_missing_file_is_not_taken_for_a_name(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        find_model(tmp_path / "opt-13b.json")


# Names.


@given(
    name=st.sampled_from(model_names()),
    seed=st.randoms(use_true_random=False),
    org=st.sampled_from(["", "org/", "a/b/"]),
    ending=st.sampled_from(["", "-Instruct", "-hf", "-chat", "-chat-hf"]),
)
@settings(deadline=None, max_examples=100)
def test_spelling_does_not_matter(name, seed, org, ending):
    varied = "".join(
        seed.choice("-_ ") if c == "-" else seed.choice([c.lower(), c.upper()])
        for c in name + ending
    )
    assert find_model(org + varied).name == name


@given(st.text())
@settings(deadline=None)
def test_normal_names_are_stable(text):
    for normal in (normal_name, normal_model_name, normal_gpu_name):
        once = normal(text)
        assert once == once.lower()
        assert normal(once) == once


# Accelerators.


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_has_positive_sourced_numbers(name):
    gpu = find_gpu(name)
    assert gpu.name == name
    sources = gpu_sources(name)
    assert set(sources) == {"gpus_per_node", *GPU_UNITS}
    for field, source in sources.items():
        assert float(getattr(gpu, field)) > 0
        assert source.strip()
    assert gpu.flop_rate_8 >= gpu.flop_rate_16
    # Drivers report binary sizes, data sheets decimal ones that round them.
    assert 0.9 < float(gpu.usable_memory / gpu.memory) < 1.1


def test_gpus_wanted_are_there():
    wanted = "A100-SXM4-80GB A100-SXM4-40GB A100-PCIe-80GB H100-SXM H100-PCIe H200-SXM H20 B200"
    assert set(wanted.split()) | {"L40S", "MI300X", "H800-SXM"} <= set(gpu_names())


def test_time_models_name_gpus_of_the_catalog():
    known = {name.lower() for name in gpu_names()}
    for profile in shipped_profiles():
        named = set(load_profile(profile).constants) - {"*"}
        assert named <= known


def test_a100():
    gpu = find_gpu("A100-SXM4-80GB")
    assert gpu.flop_rate_16 / gpu.bandwidth == pytest.approx(153, abs=0.5)  # ridge, FLOP/B
    assert gpu.memory == 80e9
    assert gpu.usable_memory == 80 * 2**30
    assert gpu.scale_up_bandwidth == 300e9  # NVLink, one direction
    assert gpu.scale_out_bandwidth == 200e9
    assert gpu.gpus_per_node == 8
    assert gpu.flop_rate("fp8") == gpu.flop_rate("bfloat16") == 312e12


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("h100", "H100-SXM"),
        ("H100-SXM", "H100-SXM"),
        ("H100-SXM5-80GB", "H100-SXM"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("h100_pcie", "H100-PCIe"),
        ("A100", "A100-SXM4-80GB"),
        ("a100-80gb", "A100-SXM4-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("A100-40GB", "A100-SXM4-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("H200", "H200-SXM"),
        ("H200-SXM", "H200-SXM"),
        ("b200 sxm", "B200"),
        ("AMD Instinct MI300X", "MI300X"),
        ("nvidia/L40S", "L40S"),
    ],
)
def test_gpu_aliases(written, name):
    assert find_gpu(written).name == name


def test_no_two_gpus_share_a_name():
    names = [
        (normal_gpu_name(name), gpu.spec.name)
        for gpu in catalog._gpus()
        for name in {gpu.spec.name, *gpu.aliases}
    ]
    assert len({name for name, _ in names}) == len(set(names))


def test_gpu_near_miss():
    with pytest.raises(InputError, match=r"h101.*did you mean.*H100-SXM"):
        find_gpu("h101-sxm")
    with pytest.raises(InputError, match=r"known are.*A100-SXM4-80GB"):
        find_gpu("zzzzzz")


# A user's own accelerator.

NUMBERS = {
    "gpus_per_node": "4",
    "memory": '"100GB"',
    "usable_memory": '"90GiB"',
    "bandwidth": '"2TB/s"',
    "flop_rate_16": '"500TFLOP/s"',
    "flop_rate_8": '"1000TFLOP/s"',
    "scale_up_bandwidth": '"200GB/s"',
    "scale_out_bandwidth": '"800Gb/s"',
}


def gpu_toml(name='name = "Mine"', **changed):
    numbers = NUMBERS | {key: value for key, value in changed.items() if value is not None}
    lines = [f'{key} = {{value = {value}, source = "measured"}}' for key, value in numbers.items()]
    lines = [line for line in lines if changed.get(line.split(" ")[0], "") is not None]
    return "\n".join([name, *lines])


@pytest.fixture
def write(tmp_path):
    def to_file(text):
        path = tmp_path / "mine.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return to_file


def test_own_gpu_by_path(write):
    path = write(gpu_toml())
    gpu = find_gpu(str(path))
    assert (gpu.name, gpu.gpus_per_node) == ("Mine", 4)
    assert gpu.usable_memory == 90 * 2**30
    assert gpu.scale_out_bandwidth == 100e9
    assert gpu_sources(str(path))["bandwidth"] == "measured"


def test_own_gpu_by_name(write):
    path = write(gpu_toml('name = "Mine"\naliases = ["my-gpu"]'))
    assert find_gpu("MY_GPU", [path]).name == "Mine"
    assert find_gpu("h100", [path]).name == "H100-SXM"
    with pytest.raises(InputError, match="Mine"):
        find_gpu("minee", [path])


def test_own_gpu_goes_before_the_catalog(write):
    path = write(gpu_toml('name = "H100-SXM"'))
    assert find_gpu("H100-SXM", [path]).bandwidth == 2e12
    assert find_gpu("H100-SXM").bandwidth == 3.35e12


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (gpu_toml() + '\ncolour = "green"', "unknown key 'colour'; known: name"),
        (gpu_toml(bandwidth=None), "'bandwidth' is missing"),
        (gpu_toml(name=""), "'name' is missing"),
        (gpu_toml(name="name = 3"), "name is 3"),
        (gpu_toml(name='name = "A"\naliases = "B"'), "aliases is 'B'"),
        (gpu_toml(bandwidth='"2TB"'), "bandwidth: unknown unit 'TB'"),
        (gpu_toml(bandwidth='"2tb/s"'), "bandwidth: unknown unit 'tb/s'"),
        (gpu_toml(bandwidth="2000"), "bandwidth: '2000' has no unit"),
        (gpu_toml(bandwidth='"0TB/s"'), "bandwidth: 0TB/s must be greater than zero"),
        (gpu_toml(bandwidth='"-1TB/s"'), "bandwidth: -1TB/s must be greater"),
        (gpu_toml(bandwidth='"nan"'), "bandwidth"),
        (gpu_toml(memory='"80GB/s"'), "memory: unknown unit 'GB/s'"),
        (gpu_toml(memory="[1]"), "memory"),
        (gpu_toml(gpus_per_node="0"), "gpus_per_node is 0"),
        (gpu_toml(gpus_per_node="1.5"), "gpus_per_node is 1.5"),
        (gpu_toml(gpus_per_node="true"), "gpus_per_node is True"),
        (gpu_toml(gpus_per_node='"8"'), "gpus_per_node is '8'"),
        (gpu_toml(memory=None) + '\nmemory = "80GB"', "memory must say its value and where"),
        (gpu_toml(memory=None) + '\nmemory = {value = "80GB"}', "memory must say its value"),
        (
            gpu_toml(memory=None) + '\nmemory = {value = "80GB", source = " "}',
            "memory: source must say",
        ),
        ("not toml", "is not a TOML file"),
        (b"\xff\xfe", "is not a TOML file"),
        ("a = " + "[" * 100_000, "is not a TOML file"),
        ("", "'name' is missing"),
    ],
)
def test_wrong_gpu_file(write, text, says):
    path = write(text)
    with pytest.raises(InputError, match=re.escape(says)) as caught:
        find_gpu(str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=re.escape(says)):
        find_gpu("h100", [path])


def test_missing_gpu_file(tmp_path):
    with pytest.raises(InputError, match=r"none\.toml: cannot be read"):
        find_gpu(str(tmp_path / "none.toml"))
    with pytest.raises(InputError, match="cannot be read"):
        find_gpu("h100", [tmp_path])
