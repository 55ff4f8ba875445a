"""``simulate``, ``check``, ``models``, ``gpus`` and configuration files."""

import json

import pytest

from fluidserve.cli import main
from fluidserve.io.catalog import gpu_names, model_names

SIMULATED = {"deployment": "2P1D tp1/tp1", "requests": "2000"}


@pytest.fixture
def command(capsys):
    """Runs a command and returns what it prints."""

    def run(*argv: str) -> str:
        assert main(argv) == 0
        return capsys.readouterr().out

    return run


def test_simulate_sets_the_formulas_beside_it(ask):
    answer = ask("simulate", "--json", rate="4", **SIMULATED)
    assert answer.code == 0
    result = answer.json
    assert (result["rate"], result["requests"], result["seed"]) == (4, 2000, 0)
    assert result["stable"] is True
    found, (row,) = result["simulation"], result["deployments"]
    assert row["label"] == "2P1D tp1/tp1"
    assert row["simulated"] is None
    assert found["throughput"] == pytest.approx(4, rel=0.05)
    assert found["ttft"]["p50"] == pytest.approx(row["ttft"]["p50"], rel=0.1)
    assert found["utilization"]["prefill"] == pytest.approx(row["utilization"]["prefill"], rel=0.1)
    low, high = found["attainment_interval"]
    assert low <= found["attainment"] <= high
    assert set(found["tpot"]) == set(found["e2e"]) == {"mean", "p50", "p90", "p99", "at_share"}
    assert found["itl"]["p50"] < found["itl"]["p99"] <= found["longest_gap"]["p99"]
    assert 0.0 <= found["stalled"] <= 1.0
    assert row["itl"] is None


def test_simulate_is_repeatable(ask):
    def simulation(seed: str):
        return ask("simulate", "--json", rate="4", seed=seed, **SIMULATED).json["simulation"]

    assert simulation("1") == simulation("1") != simulation("2")


def test_simulate_runs_at_goodput_without_a_rate(ask):
    answer = ask("simulate", deployment="2p1d TP1/tp1", requests="500", verify="1")
    assert answer.code == 0
    text = " ".join(answer.out.split())
    assert "(the goodput of the formulas); 500 requests, seed 0" in text
    assert "TTFT simulated, ms" in text
    assert "SLO met" in text
    assert "longest gap simulated, ms" in text
    assert "of the simulated requests have a gap above 5 times the median gap" in text
    assert "cross-check" in text


def test_a_limit_on_gaps_is_promised_and_shown(ask):
    answer = ask("simulate", deployment="2p1d TP1/tp1", requests="500", itl="p90:35ms")
    assert answer.code == 0
    text = " ".join(answer.out.split())
    assert "P90 ITL <= 35ms" in text
    assert "ITL simulated, ms" in text
    assert "ITL formulas, ms" in text
    assert "gaps between tokens bind" in text


def test_overload_is_told_and_simulated(ask):
    answer = ask("simulate", rate="50", **SIMULATED)
    assert answer.code == 0
    assert "UNSTABLE at 50.0 requests/s: the prefill pool (" in answer.out
    result = ask("simulate", "--json", rate="50", **SIMULATED).json
    assert result["stable"] is False
    assert result["simulation"]["throughput"] < 20


def test_simulate_writes_its_row(ask, tmp_path):
    target = tmp_path / "row.csv"
    assert ask("simulate", csv=str(target), **SIMULATED).code == 0
    assert len(target.read_text().splitlines()) == 2


def test_check(ask):
    answer = ask("check")
    assert answer.code == 0
    assert "A100-SXM4-80GB" in answer.out
    values = ask("check", "--json", rate="1200/min", gpus=None).json["inputs"]
    assert values["rate"] == 20
    assert values["max_batch"] == 1024
    default = ask("check", "--json", profile="default").json["inputs"]
    assert (default["first_token"], default["memory_utilization"]) == ("decode", 0.9)
    assert ask("check", "--json", first_token="DECODE").json["inputs"]["first_token"] == "decode"
    assert "1P1D tp2/tp1" in ask("check", deployment="1P1D tp2/tp1").out


def test_config_file_and_flags_that_override_it(ask, tmp_path):
    config = tmp_path / "in.toml"
    config.write_text(
        'model = "opt-13b"\ngpu = "a100"\ngpus = 6\nisl = 400\nosl = 100\nisl-cv = 0.5\n'
        'ttft = "300ms"\ntpot = "80ms"\nprofile = "paper"\nmax_batch = 64\nverify = 0\n'
        'json = true\ndeployment = "1P1D tp1/tp1"\n'
    )
    assert main(["check", "--config", str(config)]) == 0
    flags = {"model": None, "gpu": None, "app": None, "tpot": None, "profile": None}
    answer = ask("plan", config=str(config), **flags)
    inputs = answer.json["inputs"]
    assert (inputs["gpus"], inputs["ttft"]) == (3, 0.25)
    assert (inputs["tpot"], inputs["max_batch"]) == (0.08, 64)
    assert inputs["profile"] == "paper"


def test_models(command):
    listed = json.loads(command("models", "--json"))
    assert [m["name"] for m in listed["models"]] == model_names()
    model = json.loads(command("models", "facebook/OPT-13b", "--json"))
    assert model["schema_version"] == 1
    assert model["parameters"] == 12_853_473_280
    assert model["active_parameters"] == model["parameters"]
    assert model["weight_bytes"] == 2 * model["parameters"]
    assert model["kv_bytes_per_token"] == 800 * 1024
    assert model["kv_window_bytes"] == 0
    assert (model["layers"], model["attention"]) == (40, "MHA")
    halved = json.loads(command("models", "opt-13b", "--json", "--weight-dtype", "fp8"))
    assert 1.0 < halved["weight_bytes"] / model["parameters"] < 1.03  # tables in 16 bits
    hybrid = json.loads(command("models", "Gemma-3-27B", "--json"))
    assert (hybrid["window"], hybrid["kv_window_bytes"]) == (1024, 436207616)
    assert any("images" in note for note in hybrid["notes"])
    assert "encoders of images" in command("models", "Gemma-3-27B")
    assert "12,853,473,280" in command("models", "opt-13b")
    assert all(name in command("models") for name in model_names())


def test_check_says_what_is_kept_and_what_is_not_counted(ask):
    answer = ask("check", model="Gemma-3-27B", gpu="H100")
    assert "Gemma-3-27B: encoders of images or sound are not counted" in answer.err
    assert "81.9kB per token, 436MB in windows of 1,024 tokens" in " ".join(answer.out.split())
    described = ask("check", "--json", model="Gemma-3-27B", gpu="H100").json["model"]
    assert described["kv_window_bytes"] == 436207616


def test_a_model_from_a_file(command, tmp_path):
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "num_hidden_layers": 4,
        "vocab_size": 1000,
        "max_position_embeddings": 2048,
        "torch_dtype": "bfloat16",
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    model = json.loads(command("models", str(path), "--json"))
    assert (model["layers"], model["attention"]) == (4, "GQA")
    assert model["kv_bytes_per_token"] == 2 * 4 * 2 * 64 * 2


def test_gpus(command):
    listed = json.loads(command("gpus", "--json"))
    assert [g["name"] for g in listed["gpus"]] == gpu_names()
    gpu = json.loads(command("gpus", "h100", "--json"))
    number = gpu["numbers"]["bandwidth"]
    assert (number["value"], number["unit"]) == (3_350_000_000_000, "B/s")
    assert number["source"]
    assert "3.35TB/s" in command("gpus", "H100")
    assert all(name in command("gpus") for name in gpu_names())
