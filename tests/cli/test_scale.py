"""The command that tightens limits at a rate per GPU."""

import pytest

LABELS = "1P1D tp2/tp1,1C tp2,1S tp2 b512"


def test_named_deployments_in_json(ask):
    answer = ask("scale", "--json", deployment=LABELS, rates_per_gpu="0.5,1", gpus=None, kind=None)
    assert answer.code == 0
    low, high = answer.json["scales"]
    assert (low["rate_per_gpu"], high["rate_per_gpu"]) == (0.5, 1.0)
    for slow, fast in zip(low["deployments"], high["deployments"], strict=True):
        assert slow["label"] == fast["label"]
        assert 0.1 < slow["slo_scale"] < fast["slo_scale"] < 2.0
        assert fast["rate"] == fast["gpus"]
        assert fast["simulated"] is None


def test_the_best_of_each_kind(ask):
    answer = ask("scale", rates_per_gpu="1", kind=None, token_budgets="1024", verify="1")
    assert answer.code == 0
    assert "SLO scale" in answer.out
    assert "±" in answer.out
    assert "At 1 requests/s per GPU: " in answer.out
    assert "disaggregated" in answer.out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "give --rates-per-gpu"),
        ({"rates_per_gpu": "-1"}, "must be greater than zero"),
        ({"rates_per_gpu": "1", "gpus": None}, "give --gpus N"),
        ({"rates_per_gpu": "1", "deployment": "1C tp64"}, "tp=64"),
    ],
)
def test_wrong_input(ask, changes, message):
    answer = ask("scale", **changes)
    assert answer.code == 2
    assert message in answer.err
    assert len(answer.err.strip().splitlines()) == 1


def test_a_rate_that_nothing_carries(ask):
    answer = ask("scale", rates_per_gpu="500")
    assert answer.code == 3
    assert "nothing feasible: no deployment carries 500 requests/s per GPU" in answer.err
    assert "requests/s per GPU, whatever the latencies" in answer.err
