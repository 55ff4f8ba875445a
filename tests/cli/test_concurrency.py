"""Closed loops on the command line: plans, the fewest GPUs, one deployment, and refusals."""

import itertools

import pytest

LOOP = {"concurrency": "20", "ttft": "1s"}


def test_plan_ranks_by_throughput_with_all_users(ask):
    answer = ask("plan", "--json", verify="1", **LOOP)
    assert answer.code == 0
    rows = answer.json["deployments"]
    assert answer.json["inputs"]["concurrency"] == 20
    for row in rows:
        assert row["concurrency"] == 20
        assert row["attainment"] >= 0.9
        assert row["goodput"] == row["rate"] > 0
        assert row["output_token_rate"] / row["rate"] == pytest.approx(answer.json["inputs"]["osl"])
        # Little's law: all users are somewhere
        stay = sum(row["phases"].values())
        assert row["rate"] * stay == pytest.approx(20, rel=0.03)
    rates = [row["rate"] for row in rows]
    assert all(b <= a * 1.01 for a, b in itertools.pairwise(rates))
    simulated = rows[0]["simulated"]
    assert simulated["goodput"] == pytest.approx(rates[0], rel=0.03)
    assert simulated["attainment"] == pytest.approx(rows[0]["attainment"], abs=0.05)


def test_plan_says_that_it_is_a_closed_loop(ask):
    text = " ".join(ask("plan", verify="1", **LOOP).out.split())
    assert "closed loop of 20 users" in text
    assert "output tokens/s, with 20 users who each send the next request" in text
    assert "largest difference in throughput" in text
    assert "Poisson" not in text


def test_fewest_gpus_that_carry_the_users(ask):
    answer = ask("plan", gpus=None, max_gpus="3", **LOOP)
    assert "the fewest of at most 3 that carry the users" in " ".join(answer.out.split())
    rows = ask("plan", "--json", gpus=None, max_gpus="3", **LOOP).json["deployments"]
    sizes = [row["gpus"] for row in rows]
    assert sizes == sorted(sizes)
    assert sizes[0] == 2


def test_too_many_users(ask):
    answer = ask("plan", "--json", concurrency="5000", ttft="1s")
    assert answer.code == 3
    assert "no deployment of at most 3 GPUs meets the SLO with 5000 users" in answer.err
    assert sum(answer.json["reasons"].values()) == answer.json["candidates"]
    assert "nearest: " in answer.err


def test_simulation_beside_the_formulas(ask):
    flags = {"concurrency": "40", "deployment": "1P1D tp1/tp2", "requests": "2000"}
    found = ask("simulate", "--json", **flags).json
    row, simulated = found["deployments"][0], found["simulation"]
    assert simulated["throughput"] == pytest.approx(row["rate"], rel=0.03)
    assert simulated["ttft"]["mean"] == pytest.approx(row["ttft"]["mean"], rel=0.05)
    assert found["stable"]
    # the limit of 250 ms is missed, and the answer says so instead of failing
    assert row["goodput"] == 0.0
    text = " ".join(ask("simulate", **flags).out.split())
    assert "which MISSES the SLO" in text
    assert "by the formulas, with 40 users" in text


def test_runs_too_short_to_settle_are_refused(refused):
    told = refused("simulate", concurrency="300", deployment="1P1D tp1/tp2", requests="1000")
    assert "requests = 1000 are too few for 300 users; take at least 3000" in told
