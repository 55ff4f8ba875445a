"""Well-posed questions that nothing answers: exit code 3 with reasons and the nearest candidate."""

import pytest

NOTHING = [
    ({"ttft": "1ms"}, "no deployment meets the SLO", "7 x ttft unreachable", "1P1D tp2/tp1, idle"),
    ({"tpot": "1us"}, "no deployment meets the SLO", "7 x tpot unreachable", "1P1D tp1/tp2, idle"),
    ({"rate": "30"}, "at most 3 GPUs serves 30 requests/s", "goodput below the rate", "serves 6."),
    ({"model": "opt-175b"}, "does not fit twice into 3", "weights do not fit", "needs 8 A100"),
    (
        {"app": None, "isl": "1e6", "osl": "5"},
        "does not fit twice into 3",
        "the KV of the longest request does not fit",
        "the budget is 3",
    ),
]


@pytest.mark.parametrize(("changes", "message", "reason", "nearest"), NOTHING)
def test_plan(ask, changes, message, reason, nearest):
    answer = ask("plan", **changes)
    assert answer.code == 3
    assert answer.out == ""
    told = answer.err.partition("error: nothing feasible: ")[2].splitlines()
    assert message in told[0]
    assert told[1].startswith("  why: ")
    assert reason in told[1]
    assert told[2].startswith("  nearest: ")
    assert nearest in told[2]


def test_plan_in_json(ask):
    answer = ask("plan", "--json", ttft="1ms")
    assert answer.code == 3
    result = answer.json
    assert result["deployments"] == []
    assert result["reasons"] == {"ttft unreachable": 7}
    assert result["candidates"] == 7
    assert result["seconds"] > 0
    assert result["nearest"].startswith("1P1D")
    assert result["inputs"]["ttft"] == 0.001
    assert "nothing feasible" in answer.err


def test_simulate(ask):
    answer = ask("simulate", model="opt-66b", deployment="1P1D tp1/tp1")
    assert answer.code == 3
    assert "the prefill instance of 1P1D tp1/tp1: the weights do not fit" in answer.err
    answer = ask("simulate", "--json", ttft="1ms", deployment="1P1D tp1/tp1")
    assert answer.code == 3
    assert answer.json["deployments"] == []
