"""Queues of their own: GI/G/1 and join-the-shortest-queue, against exact results and simulation."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import betaincc

from fluidserve.queueing.mgn import fit_wait
from fluidserve.queueing.separate import fit_jsq, fit_renewal, thinned_scv, turns_scv
from fluidserve.testing import assert_no_nan

_renewal = jax.jit(fit_renewal)
_shared = jax.jit(lambda rho, n, scv: fit_wait(rho, n, scv, max_servers=16))
_jsq = jax.jit(lambda shared, n, scv, stages: fit_jsq(shared, n, scv, stages=stages))


def renewal(rho, scv, arrival_scv):
    return _renewal(*(jnp.array(float(x)) for x in (rho, scv, arrival_scv)))


def jsq(rho, servers, scv, stages=1.0):
    rho, servers, scv, stages = (jnp.array(float(x)) for x in (rho, servers, scv, stages))
    return _jsq(_shared(rho, servers, scv), servers, scv, stages)


def draws(rng, scv, shape):
    """Gamma variables of mean 1."""
    return np.ones(shape) if scv == 0 else rng.gamma(1.0 / scv, scv, size=shape)


def lindley(rho, scv, arrival_scv, *, rows=4000, steps=250, seed=1):
    """Waits of the last arrivals of many GI/G/1 queues, in units of the mean service."""
    rng, w, kept = np.random.default_rng(seed), np.zeros(rows), []
    for i in range(steps):
        w = np.maximum(w + draws(rng, scv, rows) - draws(rng, arrival_scv, rows) / rho, 0.0)
        if i >= steps - 60:
            kept.append(w)
    return np.concatenate(kept)


def play_jsq(rho, servers, scv, *, rows=2000, steps=300, seed=2):
    """Waits of the last arrivals of many pools, in units of the mean service over servers."""
    rng, kept, t = np.random.default_rng(seed), [], np.zeros(rows)
    ends = np.zeros((rows, servers, 24))
    for i in range(steps):
        t = t + rng.exponential(1.0 / (rho * servers), rows)
        fewest = (ends > t[:, None, None]).sum(axis=2).argmin(axis=1)
        row = np.arange(rows)
        last = ends[row, fewest].max(axis=1)
        start = np.maximum(last, t)
        ends[row, fewest, i % 24] = start + draws(rng, scv, rows)
        if i >= steps - 60:
            kept.append(start - t)
    return servers * np.concatenate(kept)


def test_splits_have_their_variability():
    rng, n, scv = np.random.default_rng(3), 4, 2.0
    times = np.cumsum(draws(rng, scv, 400_000))
    chosen = np.diff(times[rng.integers(n, size=len(times)) == 0])
    in_turn = np.diff(times[::n])
    for gaps, expected in ((chosen, thinned_scv(scv, n)), (in_turn, turns_scv(scv, n))):
        assert gaps.var() / gaps.mean() ** 2 == pytest.approx(expected, rel=0.03)
    assert thinned_scv(1.0, n) == 1.0


@pytest.mark.parametrize("servers", [2, 4, 16])
@pytest.mark.parametrize("rho", [0.3, 0.6, 0.9])
def test_exponential_service_has_the_exact_wait(servers, rho):
    """GI/M/1: waits exceed y with chance sigma exp(-(1 - sigma) y), sigma = A*(1 - sigma)."""
    k = float(servers)
    sigma = brentq(lambda s: (1.0 + (1.0 - s) / (k * rho)) ** -k - s, 1e-9, 1.0 - 1e-6)
    fit = renewal(rho, 1.0, 1.0 / k)
    assert float(fit.decay) == pytest.approx(1.0 - sigma, rel=1e-3)
    assert float(fit.busy) == pytest.approx(sigma, rel=0.02)
    assert float(fit.mean) == pytest.approx(sigma / (1.0 - sigma), rel=0.03)
    for y in (0.5, 2.0, 5.0):
        exact = sigma * math.exp(-(1.0 - sigma) * y)
        assert float(fit.tail(jnp.array(y))) == pytest.approx(exact, abs=0.005)


@pytest.mark.parametrize(("scv", "arrival_scv"), [(0.05, 0.25), (0.3, 0.5), (0.8, 0.125)])
@pytest.mark.parametrize("rho", [0.4, 0.8])
def test_chance_of_waiting_obeys_spitzer(scv, arrival_scv, rho):
    k = np.arange(1.0, 4000.0)
    behind = betaincc(k / scv, k / arrival_scv, 1.0 / (1.0 + scv / arrival_scv * rho))
    exact = -math.expm1(-float(np.sum(behind / k)))
    assert float(renewal(rho, scv, arrival_scv).busy) == pytest.approx(exact, rel=0.015, abs=1e-3)


@pytest.mark.parametrize(
    ("rho", "scv", "arrival_scv"), [(0.6, 0.0, 0.5), (0.8, 0.0, 0.125), (0.7, 0.6, 0.25)]
)
def test_turns_follow_simulation(rho, scv, arrival_scv):
    waits, fit = lindley(rho, scv, arrival_scv), renewal(rho, scv, arrival_scv)
    wrong = renewal(rho, scv, 1.0)
    for y in (0.0, 0.5, 1.0, 2.0):
        simulated = float((waits > y + 1e-6).mean())
        assert float(fit.tail(jnp.array(y))) == pytest.approx(simulated, abs=0.02)
        assert abs(float(wrong.tail(jnp.array(y))) - simulated) > 0.02  # Poisson arrivals differ


@pytest.mark.parametrize(
    ("rho", "servers", "scv"), [(0.7, 2, 1.0), (0.8, 4, 1.0), (0.8, 4, 0.3), (0.6, 3, 0.6)]
)
def test_jsq_follows_simulation(rho, servers, scv):
    waits, fit = play_jsq(rho, servers, scv), jsq(rho, servers, scv)
    assert float(fit.mean) == pytest.approx(waits.mean(), rel=0.06)
    for y in (0.0, 1.0, 3.0, 6.0):
        simulated = float((waits > y + 1e-6).mean())
        assert float(fit.tail(jnp.array(y))) == pytest.approx(simulated, abs=0.025)


def test_jsq_of_one_server_is_that_server():
    shared = _shared(jnp.array(0.7), jnp.array(1.0), jnp.array(0.4))
    alone = jsq(0.7, 1, 0.4, stages=3.0)
    for name in ("busy", "mean", "weight", "decay", "steep"):
        assert float(getattr(alone, name)) == float(getattr(shared, name))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.floats(1e-4, 1.0 - 1e-4),
    st.floats(0.0, 4.0),
    st.sampled_from([0.002, 0.02, 0.1, 0.5, 1.0, 3.0]),
    st.integers(1, 16),
    st.integers(1, 8),
)
def test_tails_are_tails(rho, scv, arrival_scv, servers, stages):
    y = jnp.linspace(0.0, 30.0, 61)
    for fit in (renewal(rho, scv, arrival_scv), jsq(rho, servers, scv, stages)):
        tail = fit.tail(y)
        assert_no_nan((fit, tail))
        assert bool((tail >= 0.0).all())
        assert bool((tail <= 1.0).all())
        assert float(fit.decay) > 0.0
