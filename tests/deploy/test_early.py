"""The first N requests by the formulas: limits, overload, and the event simulator."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from analysis_helpers import make_problem, plan_of, quick_jit

from fluidserve.deploy.disaggregated import evaluate, largest_rate
from fluidserve.deploy.early import early_latencies, early_metrics, early_state, node_shares
from fluidserve.eventsim import meets, simulate_first
from fluidserve.specs.deployment import parse_label
from fluidserve.stages.filling import along

LABEL = "1P1D tp2/tp1"
PROBLEM = make_problem()


@quick_jit
def metrics(plan, slo, rate):
    return early_metrics(plan, slo, rate, early_state(plan, rate))


@quick_jit
def mean_ttft(plan, rate):
    found = early_latencies(plan, early_state(plan, rate), 48)
    return found.ttft_mean, found.phases


@pytest.fixture(scope="module")
def plan():
    return plan_of(PROBLEM, LABEL)


def first(plan, horizon):
    return dataclasses.replace(plan, horizon=jnp.asarray(float(horizon)))


def test_the_nodes_average_over_the_requests():
    """Powers of the position have the means 1/2 and 1/3."""
    shares, weights = node_shares()
    assert weights.sum() == pytest.approx(1.0)
    assert weights @ shares == pytest.approx(0.5)
    assert weights @ shares**2 == pytest.approx(1 / 3)


def test_interpolation_along_a_path_for_many_candidates():
    """Also for so many that a compiler may cut the sum over cells into parts."""
    at = jnp.linspace(0.0, 1.0, 25)[:, None] ** 2 * jnp.linspace(1.0, 2.0, 1024)
    path = 3.0 * at + 1.0
    x = jnp.linspace(0.0, 0.9, 13)[:, None] * jnp.ones(1024)
    both = jax.jit(jax.vmap(lambda s: along(at, path, s * x)))(jnp.array([0.3, 1.0]))
    np.testing.assert_allclose(both[1], 3.0 * x + 1.0, rtol=1e-6)
    assert float(along(at[:, 0], path[:, 0], jnp.array(7.0))) == pytest.approx(4.0)


def test_a_long_horizon_is_steady_state(plan):
    slo = PROBLEM.slo
    for rate in (2.0, 4.0, 6.0):
        steady = evaluate(plan, slo, jnp.array(rate))
        late = metrics(first(plan, 1e6), slo, jnp.array(rate))
        assert float(late.attainment) == pytest.approx(float(steady.attainment), abs=0.01)
        assert float(late.batch) == pytest.approx(float(steady.batch), rel=0.05)


@pytest.mark.parametrize(
    ("horizon", "rate"), [(100, 8.0), (100, 11.0), (300, 6.0), (300, 8.0), (1000, 6.0), (1000, 8.0)]
)
def test_attainment_against_the_simulator(plan, horizon, rate):
    """Below and above the capacity of decode (6.8/s): within 0.07, mostly within 0.02."""
    found = metrics(first(plan, horizon), PROBLEM.slo, jnp.array(rate))
    system = PROBLEM.system(parse_label(LABEL, gpu=PROBLEM.gpu.name))
    runs = simulate_first(system, PROBLEM.workload, rate, horizon=horizon, runs=3000 // horizon)
    share = np.mean([meets(r, PROBLEM.slo).mean() for r in runs])
    assert abs(float(found.attainment) - share) < 0.07


def test_overload_is_unstable_in_steady_state_and_linear_over_the_first_requests():
    """At 1.2 times the capacity of prefill: attainment 0, and a mean TTFT that grows as N does."""
    slow = make_problem(ttft=1.0, tpot=1e3)
    plan = plan_of(slow, "1P4D tp1/tp2")
    rate = jnp.array(1.2 / float(plan.prefill.mean))
    assert float(evaluate(plan, slow.slo, rate).attainment) == 0.0
    means = [float(mean_ttft(first(plan, n), rate)[0]) for n in (2000, 4000, 8000)]
    assert means[1] / means[0] == pytest.approx(2.0, rel=0.05)
    assert means[2] / means[1] == pytest.approx(2.0, rel=0.05)
    fluid = 0.5 * 8000 * float(plan.prefill.mean) * (1.0 - 1.0 / 1.2)
    assert means[2] == pytest.approx(fluid, rel=0.05)
    queue = float(mean_ttft(first(plan, 8000), rate)[1][0])
    assert queue == pytest.approx(fluid, rel=0.05)


def goodput(plan, horizon):
    """By bisection in the attainment."""
    low, high = 1.0, 20.0
    for _ in range(20):
        middle = 0.5 * (low + high)
        share = metrics(first(plan, horizon), PROBLEM.slo, jnp.array(middle)).attainment
        low, high = (middle, high) if float(share) >= 0.9 else (low, middle)
    return low


def test_fewer_requests_allow_a_higher_rate(plan):
    """Goodput falls with N to below the capacity of decode, and exceeds it for few requests."""
    found = [goodput(plan, n) for n in (100, 300, 1000, 100_000)]
    capacity = float(largest_rate(plan)[2])
    assert found == sorted(found, reverse=True)
    assert found[0] > 1.4 * capacity
    assert found[-1] < capacity
    assert found[-1] == pytest.approx(goodput(plan, 1e6), rel=0.02)
