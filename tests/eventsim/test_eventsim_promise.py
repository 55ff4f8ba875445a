"""Shares of limits by themselves, counted; and goodput where a metric has no limit."""

import dataclasses

import numpy as np
import pytest
from eventsim_helpers import LinearTimes, make_system, workload

from fluidserve.eventsim import goodput, simulate, summarise
from fluidserve.eventsim.measure import attainment, excess, growth, margins
from fluidserve.specs.slo import Slo

SYSTEM = make_system(LinearTimes(fixed=1.0))


@pytest.fixture(scope="module")
def records():
    """Ten requests with TTFT 1 to 10 s; every second one has a single token, others TPOT of it."""
    run = simulate(SYSTEM, workload([1], [1, 3]), 0.1, requests=100, seed=0).select(0, 10)
    ttft = np.arange(1.0, 11.0)
    n_out = np.tile([1, 3], 5)
    return dataclasses.replace(
        run,
        arrival=np.zeros(10),
        first_token=ttft,
        last_token=ttft + np.where(n_out > 1, 2.0 * ttft, 0.0),
        n_out=n_out,
    )


def test_margins_are_counted_by_hand(records):
    """TTFT <= 7 by seven of ten; TPOT <= 7 by 2, 4 and 6 of five; E2E <= 6 by 1, 2, 3 and 5."""
    own = Slo(ttft=7.0, tpot=7.0, e2e=6.0, ttft_share=0.5, tpot_share=0.5, e2e_share=0.5)
    np.testing.assert_allclose(margins(records, own), [0.2, 0.1, -0.1])
    assert excess(records, own) == pytest.approx(-0.1)
    assert attainment(records, own) == pytest.approx(0.4)
    joint = Slo(ttft=2.0, tpot=7.0, e2e=6.0, attainment=0.1)
    np.testing.assert_allclose(margins(records, joint), [0.1])
    mixed = dataclasses.replace(joint, e2e_share=0.25)
    np.testing.assert_allclose(margins(records, mixed), [0.1, 0.15])


def test_summaries_have_the_share_that_is_asked_for(records):
    many = simulate(SYSTEM, workload([1], [1, 3]), 0.5, requests=500, seed=0)
    found = summarise(many, Slo(ttft=7.0, ttft_share=0.95, e2e=30.0))
    kept = many.window()
    assert found.ttft.at_share == np.quantile(kept.ttft, 0.95)
    assert found.e2e.at_share is None
    assert found.e2e.p99 == np.quantile(kept.e2e, 0.99)


@pytest.mark.parametrize(("rate", "expected"), [(0.8, 0.0), (1.25, 0.2), (2.0, 0.5)])
def test_growth_is_the_share_that_stays(rate, expected):
    """One server with service 1: of a rate above 1 the rest stays."""
    run = simulate(SYSTEM, workload([1], [1]), rate, requests=4000, seed=1)
    assert growth(run) == pytest.approx(expected, abs=0.01)


def test_without_a_limit_goodput_ends_at_the_capacity():
    """TPOT alone: what waits for prefill misses nothing, but a backlog is not served."""
    found = goodput(SYSTEM, workload([1], [1]), Slo(tpot=1.0), guess=0.5, requests=4000)
    assert found.value == pytest.approx(1.0, abs=0.02)


def test_a_percentile_is_a_joint_limit_alone():
    joint = Slo(ttft=4.0, tpot=9.0, attainment=0.95)
    own = Slo(ttft=4.0, tpot=9.0, ttft_share=0.95, tpot_share=0.5)

    def found(slo):
        return goodput(SYSTEM, workload([1], [1]), slo, guess=0.6, requests=2000).value

    assert found(own) == found(joint)
    assert found(own) < found(dataclasses.replace(own, ttft_share=0.9))
