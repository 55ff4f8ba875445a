"""``fluidserve fit``."""

import json

import pytest

from fluidserve.cli import main

ASKED = {
    "model": "Llama-3.3-70B",
    "weight-dtype": "fp8",
    "gpu": "H100-SXM",
    "context": "128k",
    "users": "5",
}


@pytest.fixture
def fit(capsys):
    def asked(*extra, **changes):
        flags = ASKED | {name.replace("_", "-"): value for name, value in changes.items()}
        pairs = [x for k, v in flags.items() if v is not None for x in (f"--{k}", v)]
        capsys.readouterr()
        code = main(["fit", *pairs, *extra])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return asked


def test_the_smallest_instance_as_engines_print_it(fit):
    code, out, err = fit()
    told = " ".join(out.split())
    assert (code, err) == (0, "")
    assert "5 requests of 131,072 tokens (128k = 128 x 1,024): tp4 pp1, 4 GPUs." in told
    assert (
        "GPU KV cache size: 717,830 tokens; maximum concurrency for 131,072 tokens per request: "
        "5.48x." in told
    )
    assert "takes 90% of the 85.5 GB that the driver reports (--memory-utilization)" in told
    assert "UNMEASURED" not in told
    assert out.count("*") == 1


def test_json(fit):
    code, out, _ = fit("--json")
    result = json.loads(out)
    assert code == 0
    assert result["schema_version"] == 1
    assert result["inputs"]["context"] == 131072
    assert result["measured"] is True
    best = result["best"]
    assert (best["tp"], best["pp"], best["gpus"], best["users"]) == (4, 1, 4, 5)
    assert best["fits"] is True
    assert best["kv_tokens"] == pytest.approx(717_830, abs=1)
    assert best["free_bytes_per_gpu"] == pytest.approx(
        best["memory_bytes_per_gpu"] - best["weight_bytes_per_gpu"]
    )
    assert len(result["instances"]) == 10
    assert best in result["instances"]


def test_nothing_holds_it(fit):
    code, out, err = fit(users="100")
    assert (code, out) == (3, "")
    assert "at most 8 H100-SXM holds 100 requests of 131,072 tokens" in err
    assert "nearest: 9 replicas of tp8 pp1, 12 requests each, on 72 GPUs" in err
    code, out, _ = fit("--json", users="100")
    result = json.loads(out)
    assert code == 3
    assert result["best"] is None
    assert result["nearest"].startswith("9 replicas")
    assert sum(result["reasons"].values()) == len(result["instances"])
    assert fit(users="20", gpus="16")[0] == 0


def test_defaults(fit):
    code, out, _ = fit(context=None, users=None, weight_dtype=None)
    told = " ".join(out.split())
    assert code == 0
    assert "holds 1 request of 131,072 tokens" in told
    assert "tp4 pp1, 4 GPUs" in told


def test_a_gpu_by_its_numbers(fit):
    spec = "peak=1P, bandwidth=4TB/s, memory=100GB, link=400GB/s"
    code, out, _ = fit(gpu=None, gpu_spec=spec)
    assert code == 0
    assert "UNMEASURED: nothing was measured on custom-GPU" in out
    result = json.loads(fit("--json", gpu=None, gpu_spec=spec, profile="vllm-0.2")[1])
    assert result["measured"] is False
    assert result["inputs"]["gpu_spec"] == spec
    assert result["best"]["memory_bytes_per_gpu"] == pytest.approx(90e9)


def test_a_file_serves_every_command(fit, tmp_path):
    config = tmp_path / "in.toml"
    config.write_text(
        'model = "opt-13b"\ngpu = "a100"\ngpus = 2\napp = "chatbot"\nttft = "250ms"\n'
        'tpot = "100ms"\nprofile = "paper"\ncontext = "2k"\nusers = 3\n'
    )
    nothing = dict.fromkeys(name.replace("-", "_") for name in ASKED)
    code, out, _ = fit("--json", config=str(config), **nothing)
    assert code == 0
    assert json.loads(out)["inputs"]["context"] == 2048
    assert main(["check", "--config", str(config)]) == 0


def test_longer_than_the_model_was_built_for(fit):
    code, _, err = fit(context="1M", users="1")
    assert code == 0
    assert "Llama-3.3-70B was built for 131,072 tokens at most; the context is 1,048,576" in err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "--model must be given"),
        ({"gpu": None}, "--gpu must be given, or --gpu-spec"),
        ({"gpu": "h100,h200"}, "names 2 GPUs; fit takes one"),
        ({"gpu_spec": "peak=1P"}, "--gpu and --gpu-spec are given together"),
        ({"context": "0"}, "--context: 0 must be a whole number of tokens"),
        ({"context": "-5"}, "--context: '-5' is not a number of tokens; write for example 128k"),
        ({"context": "nan"}, "--context: 'nan' is not a number of tokens"),
        ({"context": "1.3"}, "--context: 1.3 must be a whole number of tokens"),
        ({"context": "128KB"}, "--context: '128KB' is not a number of tokens"),
        ({"context": "99999M"}, "from 1 to 1,000,000,000"),
        ({"users": "0"}, "--users: '0' must be at least 1"),
        ({"users": "2.5"}, "--users: '2.5' must be a whole number"),
        ({"gpus": "0"}, "--gpus: '0' must be at least 1"),
        ({"memory_utilization": "1.5"}, "--memory-utilization: '1.5' must be at most 1"),
        ({"weight_dtype": "fp2"}, "weight_dtype: 'fp2' must be one of"),
        ({"profile": "nope"}, "neither a file nor one of"),
        ({"ttft": "1s"}, "--ttft"),
    ],
)
def test_wrong_input(fit, changes, message):
    code, out, err = fit(**changes)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err


def test_wrong_files(fit, tmp_path):
    config = tmp_path / "in.toml"
    config.write_text('contxt = "2k"\n')
    code, _, err = fit(config=str(config))
    assert code == 2
    assert f"{config}: contxt is not an input; did you mean context?" in err
    config.write_text("context = 0\n")
    code, _, err = fit(config=str(config), context=None)
    assert code == 2
    assert f"{config}: context: 0 must be" in err
