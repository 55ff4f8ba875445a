"""``fluidserve plan``: what it answers."""

import csv
import itertools

import pytest

from fluidserve.status import Binding

ROW = {
    *("label", "kind", "gpus", "pools", "goodput", "goodput_per_gpu", "rate", "ttft", "tpot"),
    *("e2e", "itl", "after_one_failure", "phases", "concurrency", "output_token_rate"),
    *("attainment", "utilization", "batch", "kv_use", "binding", "confidence", "tied", "simulated"),
    *("replayed", "refined", "token_budget"),
}
TIMES = {"mean", "p50", "p90", "p99", "at_share"}


@pytest.fixture
def small(ask):
    return ask("plan", "--json").json


def test_json_has_the_documented_keys(ask):
    answer = ask("plan", "--json", verify="1")
    assert (answer.code, answer.err) == (0, "") or answer.err.startswith("scored")
    result = answer.json
    assert list(result) == [
        "schema_version",
        "inputs",
        "profile",
        "traffic",
        "horizon",
        "candidates",
        "screening",
        "seconds",
        "deployments",
        "best_of_kind",
        "failed_kinds",
    ]
    assert result["screening"] is None
    assert result["schema_version"] == 1
    assert list(result["best_of_kind"]) == ["disaggregated"]
    assert result["candidates"] == 7
    assert result["profile"]["name"] == "paper"
    assert result["profile"]["provenance"].startswith("assumed")
    first, second, *_ = result["deployments"]
    assert set(first) == set(second) == ROW
    assert set(first["ttft"]) == set(first["tpot"]) == TIMES
    assert set(first["utilization"]) == {"prefill", "link", "decode"}
    assert set(first["confidence"]) == {"level", "reasons"}
    assert first["binding"] in {b.label for b in Binding}
    assert [p["role"] for p in first["pools"]] == ["prefill", "decode"]
    assert set(first["pools"][0]) == {"role", "replicas", "tp", "pp", "gpu"}
    sizes = [p["replicas"] * p["tp"] * p["pp"] for p in first["pools"]]
    assert sum(sizes) == first["gpus"] <= 3
    assert first["goodput_per_gpu"] == pytest.approx(first["goodput"] / first["gpus"])
    assert first["rate"] == first["goodput"]
    simulated = first["simulated"]
    assert simulated["goodput"] == pytest.approx(first["goodput"], rel=0.1)
    low, high = simulated["goodput_interval"]
    assert low <= simulated["goodput"] <= high
    assert set(simulated["ttft"]) == set(simulated["tpot"]) == TIMES
    assert 0 <= simulated["attainment"] <= 1
    assert second["simulated"] is None


def test_inputs_are_echoed_as_understood(small):
    inputs = small["inputs"]
    assert inputs["model"] == "OPT-13B"
    assert inputs["gpu"] == "A100-SXM4-80GB"
    assert inputs["ttft"] == 0.25
    assert inputs["attainment"] == 0.9
    assert inputs["memory_utilization"] == 0.925
    assert inputs["first_token"] == "prefill"
    assert inputs["isl"] == pytest.approx(713, abs=1)
    assert inputs["trace_rate"] is None


def test_best_come_first(small):
    goodputs = [row["goodput"] for row in small["deployments"]]
    for better, worse in itertools.pairwise(goodputs):
        assert better >= worse * 0.99


def test_infinity_is_null_in_json(ask):
    assert ask("plan", "--json", link="inf").json["inputs"]["link"] is None


def test_flags_reach_the_problem(ask, small):
    def goodput(**changes):
        return ask("plan", "--json", top="1", **changes).json["deployments"][0]["goodput"]

    base = small["deployments"][0]["goodput"]
    assert goodput(ttft="500ms") > base
    assert goodput(attainment="0.95") < base
    assert goodput(arrival_cv="1.5") < base
    assert goodput(max_batch="8") < base
    assert goodput(memory_utilization="0.5") < base
    assert goodput(link="8Gb/s") < base
    assert goodput(weight_dtype="fp8") != base
    assert goodput(kv_dtype="fp8") != base
    assert goodput(app=None, isl="400", osl="100") > base


def test_spread_of_lengths_reaches_the_problem(ask):
    plain = ask("plan", "--json", app=None, isl="400", osl="100", top="1").json
    spread = ask(
        "plan", "--json", app=None, isl="400", osl="100", isl_cv="1", osl_cv="0.5", top="1"
    ).json
    assert spread["deployments"][0]["goodput"] < plain["deployments"][0]["goodput"]


def test_names_are_found_without_regard_to_case(ask, small):
    again = ask("plan", "--json", model="OPT_13B", gpu="A100", app="CHATBOT", profile="Paper").json
    assert again["inputs"] == small["inputs"]


def test_top_limits_the_rows(ask):
    assert len(ask("plan", "--json", top="2").json["deployments"]) == 2


def test_a_rate_asks_for_the_fewest_gpus(ask):
    answer = ask("plan", "--json", gpus=None, rate="10", max_gpus="8").json
    best, *others = answer["deployments"]
    assert best["goodput"] >= 10
    assert best["rate"] == 10
    assert all(best["gpus"] <= other["gpus"] <= 8 for other in others)
    fewer = ask("plan", "--json", gpus=str(best["gpus"] - 1)).json["deployments"][0]
    assert fewer["goodput"] < 10


def test_a_rate_and_its_headroom_are_told(ask):
    answer = ask("plan", gpus=None, rate="120/min", max_gpus="4")
    assert answer.code == 0
    assert "2 GPUs, the fewest of at most 4 that reach the rate" in flat(answer.out)
    assert "the rate asked for is 2, which leaves a headroom of" in flat(answer.out)


def test_the_text_explains_the_best(ask):
    answer = ask("plan", verify="1")
    text = flat(answer.out)
    assert answer.code == 0
    assert "3 GPUs, all of the budget" in text
    assert "What limits it: " in text
    assert "Confidence: " in text
    assert "constants ASSUMED, not measured" in text
    assert "L_m = 1,024 prompt tokens" in text
    assert "prefill batch 1" in text
    assert "shares the step times with the formulas but no queueing code" in text
    assert "nan" not in text


def test_idle_gpus_are_never_silent(ask):
    """A link this slow makes every larger deployment as good as the smallest."""
    text = flat(ask("plan", link="250MB/s", ttft="5s", tpot="2s").out)
    assert "2 GPUs of 3; 1 stays idle" in text
    assert "Cannot be told apart" in text


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_tables_fit(ask, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    answer = ask("plan", gpus="6", verify="1" if columns == 80 else "0")
    assert max(map(len, answer.out.splitlines())) <= columns
    assert "…" not in answer.out
    assert "1P1D tp2pp2/tp1pp2" in answer.out


def test_colour_only_where_wanted(ask):
    assert "\x1b[" not in ask("plan").out


def test_csv(ask, tmp_path):
    target = tmp_path / "rows.csv"
    answer = ask("plan", csv=str(target), verify="1")
    assert answer.code == 0
    assert f"wrote 7 deployments to {target}" in answer.err
    with target.open(newline="") as file:
        rows = list(csv.DictReader(file))
    expected = ask("plan", "--json").json["deployments"]
    assert [r["label"] for r in rows] == [r["label"] for r in expected]
    assert float(rows[0]["ttft_p90_s"]) == pytest.approx(expected[0]["ttft"]["p90"])
    assert float(rows[0]["goodput_per_s"]) == pytest.approx(expected[0]["goodput"])
    assert float(rows[0]["simulated_goodput_per_s"]) > 0
    assert rows[1]["simulated_goodput_per_s"] == ""
    assert list(tmp_path.iterdir()) == [target]


def test_csv_is_all_or_nothing(ask, tmp_path, monkeypatch):
    target = tmp_path / "rows.csv"
    target.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("csv.DictWriter.writerows", full)
    answer = ask("plan", csv=str(target))
    assert answer.code == 2
    assert "cannot be written (No space left on device)" in answer.err
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_csv_follows_links(ask, tmp_path):
    target, link = tmp_path / "rows.csv", tmp_path / "link.csv"
    target.write_text("old")
    link.symlink_to(target)
    assert ask("plan", csv=str(link)).code == 0
    assert link.is_symlink()
    assert target.read_text().startswith("label,")


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    rows = "".join(f"{0.5 * i + 0.1 * (i % 3)},{300 + i % 50},{20 + i % 9}\n" for i in range(600))
    path.write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    return path


def test_a_trace_tells_its_rate_and_plans_for_goodput(ask, trace):
    answer = ask("plan", "--json", app=None, trace=str(trace), verify="1")
    assert answer.json["traffic"]["mean_rate"] == pytest.approx(2, rel=0.01)
    inputs, first = answer.json["inputs"], answer.json["deployments"][0]
    assert inputs["trace_rate"] == pytest.approx(2, rel=0.01)
    assert inputs["rate"] is None
    assert inputs["isl"] == pytest.approx(324.5)
    assert inputs["arrival_cv"] < 0.5
    assert first["rate"] == first["goodput"] > 2
    assert first["simulated"]["goodput_interval"] == [None, None]
    told = ask("plan", "--json", app=None, trace=str(trace), rate="2", arrival_cv="1")
    assert told.json["inputs"]["arrival_cv"] == 1


def test_a_failed_cross_check_keeps_the_plan(ask, monkeypatch):
    from fluidserve.errors import InputError

    def fails(*_):
        raise InputError("no room")

    monkeypatch.setattr("fluidserve.cli.plan.crosscheck", fails)
    answer = ask("plan", "--json", verify="1")
    assert answer.code == 0
    assert "is not cross-checked: no room" in answer.err
    assert answer.json["deployments"][0]["simulated"] is None


def flat(text: str) -> str:
    """Text without its line breaks."""
    return " ".join(text.split())


def test_a_terminal_too_narrow_cuts_nothing(ask, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    out = ask("plan").out
    assert "…" not in out
    assert "1P1D tp2/tp1" in out
    rows = [line for line in out.splitlines() if line.endswith((" green", " amber", " red"))]
    assert len(rows) == 7
    assert max(len(line) for line in out.splitlines() if "Best" in line) <= 40


def test_single_tokens_have_no_tpot(ask):
    answer = ask("plan", app=None, isl="500", osl="1")
    (row,) = [line for line in answer.out.splitlines() if line.startswith(" 2P1D tp1/tp1 ")]
    assert "∞" not in answer.out
    assert row.split()[6] == "-"


def test_a_large_headroom_is_told_in_times(ask):
    assert "a headroom of 1" in ask("plan", rate="3").out
    told = " ".join(ask("plan", rate="0.1").out.split())
    assert "which leaves a headroom of " in told
    assert " times. At that rate" in told


def test_all_kinds_stand_side_by_side(ask):
    """The default compares them, and says which wins and what holds the others back."""
    answer = ask("plan", kind=None, token_budgets="512,2048")
    assert answer.code == 0
    for kind in ("disaggregated", "colocated", "chunked"):
        assert kind in answer.out
    assert "per GPU than" in " ".join(answer.out.split())
    found = ask("plan", "--json", kind=None, token_budgets="512,2048").json
    assert set(found["best_of_kind"]) == {"disaggregated", "colocated", "chunked"}
    chunked = found["best_of_kind"]["chunked"]
    assert chunked["token_budget"] in (512, 2048)
    assert [pool["role"] for pool in chunked["pools"]] == ["chunked"]
    assert chunked["refined"]["factor"] > 0


@pytest.mark.parametrize("label", ["1C tp2", "1S tp2 b512"])
def test_any_kind_is_simulated(ask, label):
    found = ask("simulate", "--json", deployment=label, requests="800", rate="3").json
    row = found["deployments"][0]
    assert row["label"] == label
    assert found["simulation"]["attainment"] > 0.5
    assert found["simulation"]["utilization"]["link"] == 0.0


def test_advice_names_no_pools_where_there_are_none(ask):
    out = ask("plan", kind="chunked", token_budgets="1024").out
    (advice,) = (line for line in out.splitlines() if line.startswith("What limits it: "))
    assert not any(pool in advice for pool in ("prefill instances", "decode instances"))


def test_offline_there_is_no_limit(ask):
    free = dict(ttft=None, tpot=None, kind=None, token_budgets="512,2048", verify=None)
    answer = ask("plan", "--offline", "--json", gpus="2", **free)
    assert answer.code == 0
    best = answer.json["best_of_kind"]
    assert set(best) == {"disaggregated", "colocated", "chunked"}
    per_gpu = {kind: row["token_rate_per_gpu"] for kind, row in best.items()}
    assert per_gpu["chunked"] == max(per_gpu.values())
    assert answer.json["deployments"][0]["rate"] == max(row["rate"] for row in best.values())
    alone = ask("plan", "--offline", gpus="1", **free)
    assert "No disaggregated deployment: it needs at least 2 GPUs." in alone.out
    assert "tokens/s per GPU" in alone.out


def test_one_gpu_is_told_that_pools_need_two(ask):
    answer = ask("plan", gpus="1", kind=None, token_budgets="512")
    assert answer.code == 0
    assert "No disaggregated deployment: it needs at least 2 GPUs." in answer.out


def test_offline_says_as_json_that_nothing_fits(ask):
    asked = dict(model="OPT-66B", gpus="1", ttft=None, tpot=None, kind=None, verify=None)
    answer = ask("plan", "--offline", "--json", **asked)
    assert answer.code == 3
    assert answer.json["deployments"] == []
    assert "does not fit into 1" in answer.err


def test_offline_takes_no_limits(ask):
    assert "--offline and --ttft are given together" in ask("plan", "--offline").err
    nothing = dict(ttft=None, tpot=None)
    assert "or --offline" in ask("plan", **nothing).err
    assert "leave --verify out" in ask("plan", "--offline", **nothing).err
    answer = ask("plan", "--offline", gpus=None, verify=None, **nothing)
    assert answer.code == 2
    assert "give --gpus N" in answer.err
