"""DistServe's closed forms: its equations, their crossover, and a queue played forward."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from queueing_helpers import mean_and_error, simulated_waits

from fluidserve.queueing.md1 import (
    capacity,
    crossover_rate,
    md1_wait,
    mean_ttft,
    mean_ttft_pp,
    mean_ttft_tp,
)


def test_equations_by_hand():
    """DistServe (OSDI 2024), equations 1-3 at D = 0.4 s, R = 2/s, K = 1.6."""
    d, rate, k = 0.4, 2.0, 1.6
    assert mean_ttft(rate, d) == pytest.approx(d + rate * d**2 / (2 * (1 - rate * d)))
    assert mean_ttft_pp(rate, d, 2) == pytest.approx(d + rate * d**2 / (4 * (2 - rate * d)))
    expected = d / k + rate * d**2 / (2 * k * (k - rate * d))
    assert mean_ttft_tp(rate, d, k) == pytest.approx(expected)


@pytest.mark.parametrize("rho", [0.3, 0.8])
def test_wait_against_simulation(rho):
    mean, se = mean_and_error(simulated_waits(rho, 1, 0.0, runs=64))
    assert 4 * se < 0.03 * mean
    assert md1_wait(rho, 1.0) == pytest.approx(mean, abs=4 * se)
    assert md1_wait(rho, 1.05) != pytest.approx(mean, abs=4 * se)


@given(d=st.floats(0.01, 10.0), share=st.floats(0.05, 0.95))
def test_they_cross_where_they_are_equal(d, share):
    k = 1 + share
    rate = crossover_rate(d, k)
    assert 0 < rate < capacity(d / k) < capacity(d, pp=2)
    assert mean_ttft_tp(rate, d, k) == pytest.approx(mean_ttft_pp(rate, d, 2), rel=1e-9)
    assert mean_ttft_tp(0.9 * rate, d, k) < mean_ttft_pp(0.9 * rate, d, 2)


@given(d=st.floats(0.01, 10.0), rho=st.floats(0.01, 0.9), unit=st.floats(1e-3, 1e3))
def test_wait_grows_with_load_and_scales_with_the_unit_of_time(d, rho, unit):
    rate = rho / d
    assert md1_wait(1.05 * rate, d) > md1_wait(rate, d) > 0
    assert md1_wait(rate / unit, d * unit) == pytest.approx(unit * md1_wait(rate, d), rel=1e-9)


def test_idle_system():
    assert md1_wait(0.0, 0.4) == 0.0
    assert mean_ttft(0.0, 0.4) == mean_ttft_pp(0.0, 0.4, 4) == 0.4
    assert mean_ttft_tp(0.0, 0.4, 1.6) == pytest.approx(0.25)
