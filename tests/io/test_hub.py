import json
import sys
import types

import pytest

from fluidserve.errors import InputError
from fluidserve.io.catalog import find_model

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}


class NoEntry(Exception):
    pass


def install(monkeypatch, download):
    """A `huggingface_hub` that fetches by `download`."""
    hub, errors = types.ModuleType("huggingface_hub"), types.ModuleType("huggingface_hub.errors")
    hub.hf_hub_download, errors.EntryNotFoundError = download, NoEntry
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A repository with one config, whose name is somebody/Some-Model-7B."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))

    def download(*, repo_id, filename):
        assert repo_id == "somebody/Some-Model-7B"
        if not (tmp_path / filename).exists():
            raise NoEntry(filename)
        return str(tmp_path / filename)

    install(monkeypatch, download)
    return tmp_path


def test_config_is_fetched_by_its_name(folder):
    model = find_model("somebody/Some-Model-7B")
    assert (model.name, model.hidden, model.weight_dtype) == ("Some-Model-7B", 64, "bfloat16")


def test_what_says_that_weights_are_quantised_is_fetched_too(folder):
    says = {"quantization": {"quant_algo": "FP8"}}
    (folder / "hf_quant_config.json").write_text(json.dumps(says))
    assert find_model("somebody/Some-Model-7B").weight_dtype == "fp8"


def test_the_catalog_goes_before_the_network(folder):
    assert find_model("Qwen/Qwen3-8B").name == "Qwen3-8B"


def test_without_the_library_there_is_one_clear_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match="huggingface_hub is not installed") as caught:
        find_model("somebody/Qwen3-8C")
    assert "did you mean Qwen3-8B" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_network_that_fails_is_one_clear_line(monkeypatch):
    def download(**_):
        raise ConnectionError("no route\nto host")

    install(monkeypatch, download)
    with pytest.raises(InputError, match=r"ConnectionError: no route to host") as caught:
        find_model("somebody/Some-Model-7B")
    assert "\n" not in str(caught.value)
