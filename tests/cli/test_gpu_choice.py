"""GPUs by their numbers, and several of them in one plan."""

import contextlib
import csv
import io
import itertools
import json

import pytest

from fluidserve.cli import main
from fluidserve.results import Simulated
from fluidserve.search import score

A100 = "peak=312T, bandwidth=2039GB/s, memory=80GB, link=300GB/s, network=1600Gb/s"
SPEC = {"gpu": None, "gpu_spec": A100}


def text(answer):
    assert answer.code == 0, answer
    return " ".join(answer.out.split())


def test_four_numbers_answer_like_the_catalog_and_are_marked(ask):
    """The profile `paper` knows no GPU by name, so equal numbers give equal answers."""
    named, own = ask("plan", "--json").json, ask("plan", "--json", **SPEC).json
    for a, b in zip(named["deployments"], own["deployments"], strict=True):
        assert (a["label"], a["goodput"]) == (b["label"], b["goodput"])
        assert {pool["gpu"] for pool in b["pools"]} == {"custom-GPU"}
    assert own["profile"]["measured"] is False
    assert own["profile"]["provenance"].startswith("assumed")
    assert own["inputs"]["gpu"] == "custom-GPU"
    assert own["inputs"]["gpu_spec"] == A100
    assert named["inputs"]["gpu_spec"] is None
    told = text(ask("plan", **SPEC))
    assert "OPT-13B on custom-GPU (UNMEASURED), chatbot" in told
    assert "constants ASSUMED, not measured on custom-GPU" in told


def test_four_numbers_in_other_commands_and_files(ask, tmp_path):
    answer = ask("simulate", deployment="1P1D tp1/tp1", requests="500", **SPEC)
    assert "on custom-GPU (UNMEASURED)" in text(answer)
    config = tmp_path / "in.toml"
    config.write_text(f'gpu-spec = "{A100}, name=mine"\n')
    inputs = ask("check", "--json", config=str(config), gpu=None).json["inputs"]
    assert inputs["gpu"] == "mine"
    named = ask("check", "--json", config=str(config)).json["inputs"]
    assert (named["gpu"], named["gpu_spec"]) == ("A100-SXM4-80GB", None)
    config.write_text('gpu = "h100"\n')
    inputs = ask("check", "--json", config=str(config), **SPEC).json["inputs"]
    assert inputs["gpu"] == "custom-GPU"


def test_what_was_measured_is_not_marked(ask):
    for gpu, measured in (("H100", True), ("A100", True), ("MI300X", False), ("L4", False)):
        told = text(ask("check", gpu=gpu, profile="default"))
        assert ("(UNMEASURED)" in told) != measured
        assert ("ASSUMED, not measured on" in told) != measured
    listed = {g["name"]: g["measured"] for g in _json("gpus", "--json")["gpus"]}
    assert {name for name, measured in listed.items() if measured} == {
        "A100-SXM4-80GB",
        "H100-SXM",
    }


def _json(*argv):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(argv) == 0
    return json.loads(out.getvalue())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpu_spec": A100}, "--gpu and --gpu-spec are given together"),
        ({"gpu": None}, "--gpu must be given, or --gpu-spec"),
        ({"gpu": None, "gpu_spec": "peak=312T"}, "--gpu-spec: 'bandwidth' is missing"),
        ({"gpu": None, "gpu_spec": A100 + ", name=a100"}, "is a GPU of the catalog"),
        ({"gpu": "a100,h100,zzz"}, "gpu 'zzz' is neither a .toml file nor in the catalog"),
        ({"gpu": "a100,,h100"}, "has an empty name"),
        ({"gpu": "a100,A100-SXM4-80GB"}, "names A100-SXM4-80GB twice"),
        ({"gpu": "h100,mi300x", "profile": "vllm-0.2"}, "no constants for MI300X"),
    ],
)
def test_wrong_choices(refused, changes, message):
    assert message in refused("plan", **changes)


@pytest.mark.parametrize("command", ["simulate", "check"])
def test_only_a_plan_takes_several(refused, command):
    line = refused(command, gpu="a100,h100", deployment="1P1D tp1/tp1")
    assert "names 2 GPUs; only a plan compares several" in line


SEVERAL = "a100,H200-SXM,l4"


@pytest.fixture
def _quick_check(monkeypatch):
    """A cross-check that agrees at once; the real one has tests of its own."""

    def agrees(problem, row):
        interval = (0.99 * row.goodput, 1.01 * row.goodput)
        return Simulated(
            goodput=row.goodput,
            goodput_interval=interval,
            attainment=row.attainment,
            ttft=row.ttft,
            tpot=row.tpot,
            e2e=row.ttft,
            requests=1000,
            runs=3,
        )

    monkeypatch.setattr("fluidserve.cli.plan.crosscheck", agrees)


def test_several_are_planned_alike_and_ordered_by_goodput(ask):
    result = ask("plan", "--json", gpu=SEVERAL).json
    assert result["inputs"]["gpu"] == "A100-SXM4-80GB,H200-SXM,L4"
    assert [entry["gpu"] for entry in result["by_gpu"]] == ["H200-SXM", "A100-SXM4-80GB", "L4"]
    best, second, none = result["by_gpu"]
    alone = {name: ask("plan", "--json", gpu=name).json for name in ("h200", "a100")}
    for entry, name in ((best, "h200"), (second, "a100")):
        assert entry["candidates"] == alone[name]["candidates"]
        for a, b in zip(entry["deployments"], alone[name]["deployments"], strict=True):
            assert a["label"] == b["label"]
            assert a["goodput"] == pytest.approx(b["goodput"], rel=1e-5)
    assert best["deployments"][0]["goodput"] > second["deployments"][0]["goodput"]
    assert none["deployments"] == []
    assert sum(none["reasons"].values()) >= 1
    assert none["error"]
    assert all(entry["seconds"] > 0 for entry in result["by_gpu"])
    assert result["candidates"] == sum(entry["candidates"] for entry in result["by_gpu"])

    rows = result["deployments"]
    assert rows[0] == best["deployments"][0]
    goodputs = [row["goodput"] for row in rows]
    assert all(a >= 0.99 * b for a, b in itertools.pairwise(goodputs))
    assert all(row["gpus"] == sum(_sizes(row)) <= 3 for row in rows)


def _sizes(row):
    return [pool["replicas"] * pool["tp"] * pool["pp"] for pool in row["pools"]]


def test_several_are_ordered_by_fewest_gpus_for_a_rate(ask):
    result = ask("plan", "--json", gpu="a100,h200", gpus=None, rate="10", max_gpus="8").json
    firsts = [entry["deployments"][0] for entry in result["by_gpu"]]
    assert [row["gpus"] for row in firsts] == sorted(row["gpus"] for row in firsts)
    assert result["by_gpu"][0]["gpu"] == "H200-SXM"
    rows = result["deployments"]
    assert [row["gpus"] for row in rows] == sorted(row["gpus"] for row in rows)
    assert all(row["goodput"] >= 10 for row in rows)
    assert rows[0]["pools"][0]["gpu"] == "H200-SXM"


@pytest.mark.usefixtures("_quick_check")
def test_several_in_a_table(ask, tmp_path):
    target = tmp_path / "rows.csv"
    answer = ask("plan", gpu=SEVERAL, csv=str(target), verify="2")
    told = text(answer)
    table, _, rest = answer.out.partition("Order: ")
    lines = [line.split() for line in table.splitlines() if line.strip()]
    names = [line[0] for line in lines]
    assert names.index("H200-SXM") < names.index("A100-SXM4-80GB") < names.index("L4")
    assert "none:" in table
    assert table.count("assumed") == 3
    assert "simul." in table
    assert "most goodput within 3 GPUs" in rest
    assert "UNMEASURED: step times of H200-SXM, A100-SXM4-80GB, L4" in told
    assert "OPT-13B on H200-SXM (UNMEASURED)" in told
    assert "cross-check" in told
    with target.open() as file:
        rows = list(csv.DictReader(file))
    assert {row["prefill_gpu"] for row in rows} >= {"H200-SXM"}
    assert float(rows[0]["goodput_per_s"]) > 0


@pytest.mark.usefixtures("_quick_check")
def test_the_best_of_each_is_checked_first(ask):
    result = ask("plan", "--json", gpu="a100,h200", verify="3").json
    checked = [
        [row["simulated"] is not None for row in entry["deployments"]][:3]
        for entry in result["by_gpu"]
    ]
    assert checked == [[True, True, False], [True, False, False]]


def test_none_of_several(ask):
    answer = ask("plan", "--json", gpu="a100,l4", ttft="1ms")
    assert answer.code == 3
    assert "none of A100-SXM4-80GB, L4 answers the question" in answer.err
    result = answer.json
    assert result["by_gpu"] == result["deployments"] == []
    assert result["candidates"] >= 7
    assert any(reason.startswith("A100-SXM4-80GB: ttft") for reason in result["reasons"])


def test_one_program_scores_all(ask, monkeypatch):
    """Grids of different sizes are padded to one, so that nothing is compiled anew."""
    seen = set()
    real = score.score

    def watched(question, shapes, picks, *rest, **static):
        seen.add((len(picks.rate), tuple(static.items())))
        return real(question, shapes, picks, *rest, **static)

    monkeypatch.setattr(score, "score", watched)
    ask("plan", "--json", gpu="a100,h200,b200", gpus="10")
    assert len(seen) == 1


def test_lists_in_a_file(ask, tmp_path):
    config = tmp_path / "in.toml"
    config.write_text('gpu = ["a100", "h200"]\n')
    result = ask("plan", "--json", config=str(config), gpu=None).json
    assert {entry["gpu"] for entry in result["by_gpu"]} == {"A100-SXM4-80GB", "H200-SXM"}
