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
