"""Waits of the first customers: limits, and Lindley's recursion."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidserve.queueing.mgn import fit_wait
from fluidserve.queueing.transient import Walk, early_wait


def early(customer, load, *, servers=1.0, scv=0.4, arrival_scv=1.0):
    rho, n, c = (jnp.asarray(x, float) for x in (load, servers, scv))
    steady = fit_wait(jnp.clip(rho, 1e-4, 1.0 - 1e-4), n, c, arrival_scv)
    return early_wait(steady, jnp.asarray(customer, float), rho, n, c, arrival_scv)


def walk(steps, down, var):
    return Walk(steps=jnp.asarray(steps), down=jnp.asarray(down), var=jnp.asarray(var))


def simulated_waits(load, servers, scv, customers, *, runs, seed):
    """Waits in units of mean service / servers by the recursion of Kiefer and Wolfowitz."""
    rng = np.random.default_rng(seed)
    work, waits = np.zeros((runs, servers)), np.empty((customers, runs))
    for i in range(customers):
        waits[i] = work[:, 0]
        work[:, 0] += servers * rng.gamma(1.0 / scv, scv, runs)
        work = np.sort(np.maximum(work - rng.exponential(1.0 / load, runs)[:, None], 0.0), axis=1)
    return waits


def test_the_maximum_of_brownian_motion_by_hand():
    """Without drift the reflection principle: P(M > z) = 2 Phi(-z / sqrt(v k))."""
    still = walk(100.0, 0.0, 1.0)
    assert float(still.share(jnp.array(10.0))) == pytest.approx(0.317311, abs=1e-5)
    assert float(still.share(jnp.array(0.0))) == pytest.approx(1.0, abs=1e-6)


def test_the_mean_by_its_limits():
    """Drift 0: sqrt(2 v k / pi). Down and long: v / (2 down). Up and long: up * k + v / (2 up)."""
    assert float(walk(400.0, 0.0, 2.0).mean()) == pytest.approx(np.sqrt(800 * 2 / np.pi), rel=1e-3)
    assert float(walk(1e6, 0.2, 2.0).mean()) == pytest.approx(5.0, rel=1e-6)
    assert float(walk(1e4, -0.5, 2.0).mean()) == pytest.approx(5002.0, rel=1e-6)


def test_after_many_customers_it_is_steady_state():
    wait = early(1e6, 0.8)
    y = jnp.linspace(0.0, 20.0, 41)
    np.testing.assert_allclose(wait.tail(y), wait.steady.tail(y), rtol=1e-6)


@pytest.mark.parametrize("servers", [1, 4])
@pytest.mark.parametrize("load", [0.8, 0.97, 1.05, 1.3])
def test_the_share_of_late_customers_against_the_recursion(load, servers):
    """Over the first 200: within 0.03 of the simulated share, whose own error is below 0.01."""
    waits = simulated_waits(load, servers, 0.3, 200, runs=1500, seed=3)
    late = float(np.quantile(waits, 0.9))
    wait = early(np.arange(200.0)[:, None], load, servers=float(servers), scv=0.3)
    share = float(jnp.mean(wait.tail(jnp.array([late]))))
    assert abs(share - float((waits > late).mean())) < 0.03


def test_above_capacity_the_wait_grows_linearly():
    """Half of the k-th customers wait longer than k (1 - 1/load), but for the shift of z."""
    wait = early(1e5, 1.25)
    middle = 1e5 * (1.0 - 1.0 / 1.25)
    assert float(wait.tail(jnp.asarray(middle))) == pytest.approx(0.5, abs=0.01)
    assert float(wait.tail(jnp.asarray(0.9 * middle))) > 0.999
    assert float(wait.tail(jnp.asarray(1.1 * middle))) < 0.001


@jax.jit
def tail(customer, load, scv, y):
    return early(customer, load, scv=scv).tail(y)


@settings(deadline=None, max_examples=40)
@given(
    load=st.floats(0.05, 3.0),
    customer=st.floats(0.0, 5e3),
    y=st.floats(0.0, 50.0),
    scv=st.floats(0.02, 3.0),
)
def test_later_customers_and_higher_loads_wait_longer(load, customer, y, scv):
    here = float(tail(customer, load, scv, y))
    assert 0.0 <= here <= 1.0
    assert float(tail(customer + 50.0, load, scv, y)) >= here - 2e-3
    assert here >= float(tail(customer, load, scv, y + 1.0)) - 1e-9


def test_a_sum_with_an_exponential():
    """Where the wait is all but zero only the exponential is left, cut into four atoms."""
    wait = early(1e4, 0.01)
    late = float(wait.tail_with(jnp.array(1.0), jnp.array(1.0)))
    assert late == pytest.approx(np.exp(-1.0), abs=0.13)
