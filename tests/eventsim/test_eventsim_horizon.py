"""The first requests into an empty system: against closed forms and against overload."""

import math

import numpy as np
import pytest
from eventsim_helpers import LinearTimes, make_system

from fluidserve.errors import InputError
from fluidserve.eventsim import (
    goodput_first,
    mean_utilisation,
    simulate_first,
    summarise_first,
)
from fluidserve.specs.applications import synthetic_workload
from fluidserve.specs.slo import Slo

SERVICE = 0.1
ONE = make_system(LinearTimes(fixed=SERVICE))
WORKLOAD = synthetic_workload(100.0, 1.0, isl_cv=0.0, osl_cv=0.0)


def serve(rate, *, horizon, runs=200, seed=0, workload=WORKLOAD, system=ONE):
    return simulate_first(system, workload, rate, horizon=horizon, runs=runs, seed=seed)


def test_overload_grows_linearly_with_the_horizon():
    """At 1.2 times capacity the i-th request waits i (s - 1/rate): the mean doubles with N."""
    means = []
    for horizon in (200, 400, 800):
        runs = serve(1.2 / SERVICE, horizon=horizon, runs=60)
        waits = np.array([r.ttft.mean() - SERVICE for r in runs])
        fluid = 0.5 * horizon * SERVICE * (1.0 - 1.0 / 1.2)
        noise = 0.6 * SERVICE * math.sqrt(horizon)  # the walk also reflects early on
        assert abs(waits.mean() - fluid) < noise
        means.append(waits.mean())
    assert 1.8 < means[1] / means[0] < 2.1
    assert 1.9 < means[2] / means[1] < 2.05


def test_the_second_request_by_hand():
    """It waits while the first is served: E(s - A)+ = s - (1 - exp(-rate s)) / rate."""
    rate = 8.0
    waits = np.array([r.ttft[1] - SERVICE for r in serve(rate, horizon=10, runs=2000)])
    expected = SERVICE - (1.0 - math.exp(-rate * SERVICE)) / rate
    assert abs(waits.mean() - expected) < 4 * waits.std() / math.sqrt(len(waits))


def test_a_long_horizon_is_steady_state():
    """Pollaczek-Khinchine at load 0.6, which 2000 requests reach."""
    summary = summarise_first(
        serve(6.0, horizon=2000, runs=40), Slo(ttft=1.0, tpot=1.0, attainment=0.9)
    )
    steady = SERVICE + 0.6 * SERVICE / (2 * 0.4)
    assert summary.requests == 80_000
    assert summary.ttft.mean == pytest.approx(steady, rel=0.03)


def test_summary_takes_every_request():
    slo = Slo(ttft=0.15, tpot=1.0, attainment=0.9)
    runs = serve(8.0, horizon=50, runs=30)
    summary = summarise_first(runs, slo)
    ttft = np.concatenate([r.ttft for r in runs])
    assert summary.requests == 1500
    assert summary.attainment.value == pytest.approx(np.mean(ttft <= 0.15 * (1 + 1e-9)))
    assert summary.attainment.low < summary.attainment.value < summary.attainment.high
    assert summary.ttft.p90 == pytest.approx(np.quantile(ttft, 0.9))
    assert 0.0 < mean_utilisation(runs).prefill < 1.0


def test_goodput_falls_with_the_horizon_towards_steady_state():
    """M/D/1 with a limit of ten services; above capacity for a few requests."""
    slo = Slo(ttft=10 * SERVICE, tpot=1.0, attainment=0.9)
    found = {
        n: goodput_first(ONE, WORKLOAD, slo, guess=9.0, horizon=n, runs=6000 // n, tolerance=0.02)
        for n in (30, 100, 500)
    }
    values = [f.value for f in found.values()]
    assert values == sorted(values, reverse=True)
    assert found[30].value > 1.0 / SERVICE
    assert all(f.low < f.value < f.high for f in found.values())


def test_a_target_that_any_rate_meets():
    slo = Slo(ttft=1000.0, tpot=1.0, attainment=0.9)
    with pytest.raises(InputError, match="too short to overload"):
        goodput_first(ONE, WORKLOAD, slo, guess=8.0, horizon=20, runs=5)


def test_the_same_seeds_give_the_same_runs_and_others_do_not():
    again = serve(8.0, horizon=20, runs=2), serve(8.0, horizon=20, runs=2)
    np.testing.assert_array_equal(again[0][1].arrival, again[1][1].arrival)
    assert again[0][0].arrival[5] != again[0][1].arrival[5]
    np.testing.assert_array_equal(
        serve(8.0, horizon=20, runs=1, seed=1)[0].arrival, again[0][1].arrival
    )


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_a_wrong_rate(rate):
    with pytest.raises(InputError, match="must be positive and finite"):
        serve(rate, horizon=10, runs=1)
