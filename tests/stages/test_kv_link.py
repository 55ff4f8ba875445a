"""The link as a queue: Pollaczek-Khinchine, its limits, and the fit of its exponential."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidserve.stages.kv_link import link_state
from fluidserve.testing import assert_no_nan

MEAN, SQUARE = 700.0, 700.0**2 * 1.6

_link = jax.jit(
    lambda rate, per_token, load, n: link_state(
        rate, per_token, MEAN, SQUARE, prefill_load=load, n_prefill=n
    )
)


def link(rate, per_token, *, prefill_load=0.0, n=4.0):
    return _link(*(jnp.array(float(x)) for x in (rate, per_token, prefill_load, n)))


@pytest.mark.parametrize("rho", [0.1, 0.5, 0.9])
def test_pollaczek_khinchine(rho):
    """An idle prefill pool passes its Poisson arrivals on."""
    per_token = 1e-4
    rate = rho / (MEAN * per_token)
    found = link(rate, per_token)
    assert float(found.load) == pytest.approx(rho)
    assert float(found.transfer) == pytest.approx(MEAN * per_token)
    expected = rate * SQUARE * per_token**2 / (2 * (1 - rho))
    assert float(found.wait) == pytest.approx(expected, rel=1e-9)


def test_wait_against_a_queue_played_forward():
    """Lindley's recursion with two lengths of prompts, 16 runs of 50,000 transfers."""
    rho, n = 0.7, 50_000
    rng = np.random.default_rng(0)
    sizes, shares = np.array([300.0, 1700.0]), np.array([0.7, 0.3])
    mean, square = sizes @ shares, sizes**2 @ shares
    per_token = 1e-4
    rate = rho / (mean * per_token)
    means = []
    for _ in range(16):
        services = rng.choice(sizes, n, p=shares) * per_token
        steps = services[:-1] - rng.exponential(1 / rate, n - 1)
        walk = np.concatenate([[0.0], np.cumsum(steps)])
        means.append((walk - np.minimum.accumulate(walk)).mean())
    se = np.std(means, ddof=1) / 4
    found = link_state(
        jnp.array(rate),
        per_token,
        mean,
        square,
        prefill_load=jnp.array(0.0),
        n_prefill=jnp.array(1.0),
    )
    assert 4 * se < 0.1 * np.mean(means)
    assert float(found.wait) == pytest.approx(np.mean(means), abs=4 * se)
    assert 1.15 * float(found.wait) != pytest.approx(np.mean(means), abs=4 * se)


def test_infinite_bandwidth_is_no_link():
    found = link(1e6, 0.0)
    assert float(found.load) == float(found.wait) == float(found.transfer) == 0.0
    chance, rate = found.exponential()
    assert float(chance) == 0.0
    assert float(rate) > 0


def test_a_busy_prefill_pool_smooths():
    """Between the uncorrected wait and none, less so for a larger pool."""
    calm = float(link(8.0, 1e-4).wait)
    one, many = (float(link(8.0, 1e-4, prefill_load=0.9, n=n).wait) for n in (1.0, 16.0))
    assert 0 < one < many < calm
    assert one == pytest.approx(calm * (1 - 0.9**3))


def test_overload_stays_finite():
    found = link(1e3, 1e-3, prefill_load=7.0)
    assert float(found.load) > 1
    assert_no_nan(found)


@settings(deadline=None)
@given(
    rate=st.floats(1e-6, 1e6),
    per_token=st.floats(0.0, 1.0),
    prefill_load=st.floats(0.0, 10.0),
    n=st.integers(1, 64),
)
def test_never_negative_and_consistent(rate, per_token, prefill_load, n):
    found = link(rate, per_token, prefill_load=prefill_load, n=n)
    assert_no_nan(found)
    assert float(found.wait) >= 0
    chance, drain = found.exponential()
    assert 0 <= float(chance) < 1
    if float(found.wait) > 1e-12 and float(found.load) < 0.99:
        assert float(chance) / float(drain) == pytest.approx(float(found.wait), rel=1e-6)


@settings(deadline=None)
@given(rate=st.floats(0.1, 10.0), unit=st.floats(1e-3, 1e3))
def test_scales_with_the_unit_of_time(rate, unit):
    one, other = link(rate, 1e-4), link(rate / unit, 1e-4 * unit)
    assert float(other.wait) == pytest.approx(unit * float(one.wait), rel=1e-9)


def test_gradients_are_finite_everywhere():
    def wait(rate, per_token, load):
        found = link_state(
            rate, per_token, MEAN, SQUARE, prefill_load=load, n_prefill=jnp.array(2.0)
        )
        chance, drain = found.exponential()
        return found.wait + found.load + chance + drain

    slopes = jax.jit(jax.grad(wait, argnums=(0, 1, 2)))
    for rate in (0.0, 7.0, 14.285, 30.0):
        for per_token in (0.0, 1e-4):
            for load in (0.0, 0.5, 1.0, 1.5):
                assert_no_nan(slopes(*map(jnp.array, (rate, per_token, load))))
