"""The command that shows deployments over the arrival rate."""

import csv

import pytest

LABELS = "1P1D tp2/tp1,1C tp2,1S tp2 b512"


def test_curves_in_json(ask):
    """Every deployment at every rate, and simulated points near its goodput."""
    answer = ask(
        "curve", "--json", deployment=LABELS, rates="2,4,40", verify="1", requests="600", gpus=None
    )
    assert answer.code == 0
    curves = answer.json["curves"]
    assert [c["label"] for c in curves] == LABELS.split(",")
    assert [c["kind"] for c in curves] == ["disaggregated", "colocated", "chunked"]
    for curve in curves:
        assert curve["rate"] == [2.0, 4.0, 40.0]
        low, middle, high = curve["attainment"]
        assert low >= middle > 0.8
        assert high == 0.0
        assert curve["ttft"]["p90"][0] <= curve["ttft"]["p90"][1]
        assert curve["ttft"]["p90"][2] is None
        (point,) = curve["simulated"]
        at = curve["rate"].index(point["rate"])
        assert point["attainment"] == pytest.approx(curve["attainment"][at], abs=0.06)
        assert point["low"] <= point["attainment"] <= point["high"]
        assert point["throughput"] == pytest.approx(point["rate"], rel=0.1)
        assert curve["itl"] is None
        assert 0.0 < point["itl"][0] <= point["itl"][2]


def test_gaps_between_tokens_where_they_are_limited(ask, tmp_path):
    """Formulas and simulation of single gaps agree; prompts stall the colocated kind."""
    table, picture = tmp_path / "curves.csv", tmp_path / "curves.png"
    question = {
        "deployment": "1P1D tp2/tp1,1C tp2,1S tp2 b512",
        "rates": "1.5",
        "verify": "1",
        "requests": "2000",
        "gpus": None,
        "itl": "p99:400ms",
    }
    answer = ask("curve", "--json", **question)
    assert answer.code == 0
    pools, colocated, chunked = answer.json["curves"]
    for curve in (pools, colocated, chunked):
        ((point,), itl) = curve["simulated"], curve["itl"]
        assert itl["p50"][0] == pytest.approx(point["itl"][0], rel=0.1)
        assert itl["p50"][0] <= itl["p90"][0] <= itl["p99"][0]
    assert colocated["itl"]["p99"][0] > 2.0 * pools["itl"]["p99"][0]
    assert colocated["simulated"][0]["itl"][2] > 2.0 * pools["simulated"][0]["itl"][2]
    shown = ask("curve", csv=str(table), plot=str(picture), **question)
    assert "ITL ms" in shown.out
    with table.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert float(lines[1]["itl_p99_s"]) == pytest.approx(colocated["itl"]["p99"][0])
    assert float(lines[1]["simulated_itl_p99_s"]) == colocated["simulated"][0]["itl"][2]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_best_of_each_kind_by_default(ask, tmp_path):
    table, picture = tmp_path / "curves.csv", tmp_path / "curves.png"
    answer = ask(
        "curve", kind=None, token_budgets="1024", csv=str(table), plot=str(picture), verify="0"
    )
    assert answer.code == 0
    assert "Goodput: " in answer.out
    assert "unstable" in answer.out
    with table.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert {line["kind"] for line in lines} == {"disaggregated", "colocated", "chunked"}
    assert len(lines) == 3 * 12
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rates": "5,-1"}, "rates"),
        ({"rates": "fast"}, "rates"),
        ({"deployment": "1S tp2"}, "is not a label"),
        ({"concurrency": "4", "gpus": None}, "curves are over arrival rates"),
        ({"gpus": None}, "give --gpus N"),
    ],
)
def test_wrong_input(ask, changes, message):
    answer = ask("curve", **changes)
    assert answer.code == 2
    assert message in answer.err
    assert len(answer.err.strip().splitlines()) == 1
