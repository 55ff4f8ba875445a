"""Closed cyclic networks: the law against its exact product form, and limits on both sides."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from analysis_helpers import quick_jit
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidserve.queueing.closed import closed_law, closed_wait
from fluidserve.queueing.mgn import fit_wait
from fluidserve.testing import assert_no_nan

fit = quick_jit(fit_wait)


@quick_jit
def solve(jobs, servers, service, away, limit, scv, variability):
    """Station 2 serves everyone at once in a mean time, up to a largest rate."""

    def returning(number):
        return jnp.minimum(number / away, limit)

    law = closed_law(jobs, servers, service, returning, variability=variability)
    wait = closed_wait(law, servers, scv, servers / service, jnp.zeros_like(law.number))
    return law, wait


def network(jobs, servers, *, service=1.0, away=5.0, limit=1e9, scv=1.0, variability=1.0):
    numbers = (jobs, servers, service, away, limit, scv, variability)
    return solve(*(jnp.asarray(float(x)) for x in numbers))


def exact(jobs, servers, *, service=1.0, away=5.0):
    """The product form on every whole number, in double precision."""
    logs = [0.0]
    for q in range(jobs):
        rate = min(q + 1, servers) / service
        logs.append(logs[-1] + math.log((jobs - q) / away) - math.log(rate))
    weight = np.exp(np.array(logs) - max(logs))
    return weight / weight.sum()


def recursion(jobs, *, service, away):
    """Mean-value analysis of one queue and a delay (Reiser and Lavenberg 1980): rate and time."""
    number = 0.0
    for n in range(1, jobs + 1):
        time = service * (1.0 + number)
        rate = n / (time + away)
        number = rate * time
    return rate, time


@pytest.mark.parametrize(
    ("jobs", "servers", "away"),
    [(1, 1, 5.0), (7, 2, 5.0), (60, 4, 20.0), (500, 1, 300.0), (500, 4, 160.0), (3000, 8, 900.0)],
)
def test_law_is_the_product_form(jobs, servers, away):
    law, _ = network(jobs, servers, away=away)
    weight, number = exact(jobs, servers, away=away), np.arange(jobs + 1)
    mean, deviation = weight @ number, math.sqrt(weight @ number**2 - (weight @ number) ** 2)
    exactly = jobs < 64
    assert float(law.mean(law.number)) == pytest.approx(mean, rel=1e-4 if exactly else 0.02)
    spread = jnp.sqrt(law.mean(law.number**2) - law.mean(law.number) ** 2)
    assert float(spread) == pytest.approx(deviation, rel=1e-3 if exactly else 0.02)
    rate = weight @ np.minimum(number, servers)
    assert float(law.rate) == pytest.approx(rate, rel=1e-5 if exactly else 1e-3)


@pytest.mark.parametrize(("jobs", "away"), [(1, 3.0), (5, 3.0), (20, 30.0), (40, 30.0)])
def test_wait_is_that_of_mean_value_analysis(jobs, away):
    law, wait = network(jobs, 1, away=away)
    rate, time = recursion(jobs, service=1.0, away=away)
    assert float(law.rate) == pytest.approx(rate, rel=1e-4)
    assert float(wait.mean) == pytest.approx(time - 1.0, rel=1e-3, abs=1e-6)
    # an arrival sees the network with one job less
    busy = 1.0 - exact(jobs - 1, 1, away=away)[0] if jobs > 1 else 0.0
    assert float(wait.busy) == pytest.approx(busy, abs=1e-4)


@pytest.mark.parametrize(("servers", "rho", "scv"), [(1, 0.5, 0.0), (1, 0.8, 0.3), (4, 0.8, 1.0)])
def test_many_jobs_that_return_at_one_rate_are_an_open_queue(servers, rho, scv):
    limit = rho * servers
    variability = 0.5 * (1.0 + scv)
    law, wait = network(2000, servers, away=1e-3, limit=limit, scv=scv, variability=variability)
    assert float(law.rate) == pytest.approx(limit, rel=1e-4)
    open_one = fit(jnp.array(rho), jnp.array(float(servers)), jnp.array(scv))
    assert float(wait.mean) == pytest.approx(float(open_one.mean), rel=0.04)
    for y in (0.5, 2.0, 5.0):
        assert float(wait.tail(jnp.array(y))) == pytest.approx(
            float(open_one.tail(jnp.array(y))), abs=0.03
        )


def test_full_server_leaves_the_rest_waiting_and_regular_flows_never_wait():
    law, wait = network(100, 2, away=8.0, scv=0.0, variability=0.02)
    assert float(law.rate) == pytest.approx(2.0, rel=1e-4)
    # two a second, eight seconds away: 84 are at the servers, 82 of them waiting
    assert float(wait.mean) == pytest.approx(82.0, rel=2e-3)
    assert float(wait.tail(jnp.array(70.0))) > 0.999
    assert float(wait.tail(jnp.array(95.0))) < 0.001
    _, regular = network(5, 1, away=8.0, scv=0.0, variability=0.02)
    assert float(regular.mean) < 0.02
    _, random = network(5, 1, away=8.0, scv=0.0, variability=0.5)
    assert float(random.mean) > 0.1


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5000),
    st.integers(1, 64),
    st.floats(-3, 3),
    st.floats(-3, 3),
    st.floats(0, 1),
)
def test_no_nan_and_two_bounds(jobs, servers, away, limit, scv):
    law, wait = network(
        jobs, servers, away=10**away, limit=10**limit, scv=scv, variability=0.5 * (1 + scv)
    )
    assert_no_nan((law, wait))
    assert float(jnp.sum(law.weight)) == pytest.approx(1.0, abs=1e-4)
    assert float(law.rate) <= min(servers, 10**limit, jobs / (1 + 10**away)) * (1 + 2e-2)
    assert 0.0 <= float(wait.busy) <= 1.0 + 1e-5


def test_gradients_are_finite():
    def rate(service, away):
        law = closed_law(
            jnp.array([3.0, 40.0, 900.0]),
            jnp.array([1.0, 2.0, 4.0]),
            service * jnp.ones(3),
            lambda j: j / away,
            variability=0.6,
        )
        return jnp.sum(law.rate)

    by_service, by_away = quick_jit(jax.grad(rate, argnums=(0, 1)))(1.0, 100.0)
    assert by_service < 0.0
    assert by_away < 0.0
    assert np.isfinite([by_service, by_away]).all()
