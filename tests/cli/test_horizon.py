"""The flag --horizon: the answer says that it is not steady state."""

import pytest


@pytest.mark.slow
def test_the_first_requests_are_told_from_steady_state(ask):
    """Both answers say which they are, and few requests allow more than steady state."""
    early, steady = (ask("plan", "--json", horizon=n).json for n in ("100", None))
    assert (early["horizon"], steady["horizon"]) == (100, None)
    assert early["inputs"]["horizon"] == 100
    assert early["deployments"][0]["goodput"] > steady["deployments"][0]["goodput"]
    text = " ".join(ask("plan", horizon="100").out.split())
    assert "the first 100 requests into an empty system" in text
    assert "(not steady state)" in text
    assert "in steady state" in " ".join(ask("plan").out.split())


@pytest.mark.slow
def test_an_overload_of_the_first_requests_is_no_instability(ask):
    """Latencies grow with the number of requests, which the answer says; they are not unbounded."""
    deployment = {"deployment": "1P1D tp2/tp1", "horizon": "100", "rate": "30"}
    answer = ask("simulate", "--json", **deployment).json
    row = answer["deployments"][0]
    assert row["ttft"]["p90"] is not None
    assert not any("unstable" in reason for reason in row["confidence"]["reasons"])
    assert "Above capacity" in ask("simulate", **deployment).out
