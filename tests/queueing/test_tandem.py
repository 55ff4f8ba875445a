"""The longest job ahead against a queue played forward, and the formulas of the docstring."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from fluidserve.queueing.tandem import ahead, at_levels
from fluidserve.testing import assert_no_nan

SIZES = np.array([0.2, 0.6, 1.0, 1.6, 4.0])
SHARES = np.array([0.2, 0.3, 0.25, 0.15, 0.1])
SIZES = SIZES / (SIZES @ SHARES)
EDGES = np.array([0.1, *(0.5 * (SIZES[1:] + SIZES[:-1])), 4.5])

_ahead = jax.jit(ahead)


def found(load, sizes=SIZES, shares=SHARES, edges=EDGES):
    return _ahead(*(jnp.array(x, float) for x in (edges, sizes, shares, load)))


def play(load, *, customers=400_000, seed=0):
    """One row: waits, the longest job of the running busy period, and each period's longest."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1 / load, customers)
    services = rng.choice(SIZES, customers, p=SHARES)
    waits, longest, periods = np.empty(customers), np.empty(customers), []
    work, top = 0.0, 0.0
    for i, (gap, service) in enumerate(zip(gaps.tolist(), services.tolist(), strict=True)):
        work -= gap
        if work <= 0.0:
            if i:
                periods.append(top)
            work, top = 0.0, 0.0
        waits[i], longest[i] = work, top
        work += service
        top = max(top, service)
    return waits, longest, np.array(periods)


def batch_error(values, batches=40):
    means = [part.mean() for part in np.array_split(np.asarray(values, float), batches)]
    return float(np.mean(means)), float(np.std(means, ddof=1) / np.sqrt(batches))


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
def test_against_a_row_played_forward(load):
    """400,000 customers, seed 0; a bound of 4 standard errors from 40 batches.

    P(longest <= edge | busy), E[W; longest <= edge], and the chance that a busy period holds no
    longer job, whose integral is `reach`.
    """
    waits, longest, periods = play(load)
    got = found(load)
    busy = waits > 0
    assert busy.mean() == pytest.approx(load, abs=0.01)
    for i, edge in enumerate(EDGES):
        share, se = batch_error(longest[busy] <= edge)
        assert 4 * se < 0.02
        assert float(got.cdf[i]) == pytest.approx(share, abs=4 * se + 1e-4), edge
        mean, se = batch_error(waits * (longest <= edge))
        assert float(got.wait[i]) == pytest.approx(mean, abs=4 * se + 1e-3), edge

    none_longer = [(periods <= edge).mean() for edge in EDGES]
    steps = np.diff(EDGES) * (1 - 0.5 * (np.array(none_longer[1:]) + none_longer[:-1]))
    reach = np.append(np.cumsum(steps[::-1])[::-1], 0.0)
    np.testing.assert_allclose(got.reach, reach, atol=0.02)


def test_comparison_can_fail():
    waits, longest, _ = play(0.5)
    share, se = batch_error(longest[waits > 0] <= EDGES[3])
    assert float(found(0.6).cdf[3]) != pytest.approx(share, abs=4 * se + 1e-4)


@pytest.mark.parametrize("load", [0.1, 0.6, 0.95])
def test_killed_busy_period_by_root_finding(load):
    """b = E[exp(-load S (1 - b)); S <= x], here by bracketing instead of Newton."""
    got = found(load)
    for i in range(1, len(SIZES)):
        sizes, shares = SIZES[:i], SHARES[:i]

        def excess(b, sizes=sizes, shares=shares):
            return shares @ np.exp(-load * sizes * (1 - b)) - b

        b = optimize.brentq(excess, 0, 1)
        short, mu = shares.sum(), shares @ sizes
        q = 1 - short
        cdf = (1 - load) * (short - b) / q / load
        wait = (1 - load) * (mu / q - (short - b) * (1 - load * mu) / (load * q**2))
        assert float(got.cdf[i]) == pytest.approx(cdf, rel=1e-6)
        assert float(got.wait[i]) == pytest.approx(wait, rel=1e-6, abs=1e-12)


def test_equal_jobs():
    """One size: it is always ahead of one that waits, and the wait is Pollaczek-Khinchine's."""
    got = found(0.6, sizes=[1.0], shares=[1.0], edges=[0.999, 1.0])
    np.testing.assert_allclose(got.cdf, [0.0, 1.0], atol=1e-9)
    np.testing.assert_allclose(got.wait, [0.0, 0.6 / (2 * 0.4)], atol=1e-9)
    assert float(got.reach[-1]) == 0.0


def test_longest_edge_is_the_whole_queue():
    for load in (0.2, 0.9):
        got = found(load)
        square = SHARES @ SIZES**2
        assert float(got.cdf[-1]) == 1.0
        assert float(got.wait[-1]) == pytest.approx(load * square / (2 * (1 - load)))


def test_sojourn_formula_is_the_recursion_of_a_flow_shop():
    """The identity the model rests on: W + S + (k-1) max(S, max over l of S_l - I_l / (k-1))."""
    n, k, rng = 400, 4, np.random.default_rng(1)
    arrival = np.cumsum(rng.exponential(1.3, n))
    service = rng.lognormal(-0.5, 1.0, n)
    free, done = np.zeros(k), np.empty(n)
    for j in range(n):
        t = arrival[j]
        for stage in range(k):
            t = free[stage] = max(free[stage], t) + service[j]
        done[j] = t

    start, ends, idle = np.empty(n), 0.0, np.empty(n)
    for j in range(n):
        idle[j] = max(arrival[j] - ends, 0.0)  # of the first stage, just before job j
        start[j] = max(arrival[j], ends)
        ends = start[j] + service[j]
    idle_until = np.cumsum(idle)
    for j in range(n):
        since = idle_until[j] - idle_until[:j]
        held = np.max(service[:j] - since / (k - 1), initial=0.0)
        expected = start[j] + service[j] + (k - 1) * max(service[j], held)
        assert done[j] == pytest.approx(expected, rel=1e-12)


@settings(deadline=None, max_examples=60)
@given(load=st.floats(1e-4, 1 - 1e-4), seed=st.integers(0, 10_000))
def test_it_is_a_distribution(load, seed):
    rng = np.random.default_rng(seed)
    sizes = np.sort(rng.lognormal(0, 1.5, 5))
    shares = rng.dirichlet(np.ones(5))
    sizes = sizes / (sizes @ shares)
    edges = np.array([0.5 * sizes[0], *(0.5 * (sizes[1:] + sizes[:-1])), 1.5 * sizes[-1]])
    got = found(load, sizes, shares, edges)
    assert_no_nan(got)
    assert (np.diff(got.cdf) >= 0).all()
    assert float(got.cdf[0]) >= 0
    assert float(got.cdf[-1]) == 1.0
    assert (np.diff(got.wait) >= 0).all()
    assert (np.diff(got.reach) <= 1e-12).all()


def test_more_load_brings_longer_jobs_and_waits():
    low, high = found(0.3), found(0.7)
    assert (high.cdf[1:-1] < low.cdf[1:-1]).all()
    assert (high.wait[-1] > low.wait[-1]).all()
    assert (high.reach[:-1] > low.reach[:-1]).all()


def test_a_batch_equals_its_members():
    loads = np.array([0.1, 0.5, 0.9])
    wide = [np.repeat(x[:, None], 3, axis=1) for x in (EDGES, SIZES, SHARES)]
    batch = ahead(*map(jnp.array, wide), jnp.array(loads))
    for i, load in enumerate(loads):
        for got, one in zip(jax.tree.leaves(batch), jax.tree.leaves(found(load)), strict=True):
            np.testing.assert_allclose(got[:, i], one, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("load", [1e-4, 0.5, 1 - 1e-4])
def test_gradients_are_finite(load):
    def total(load, sizes):
        return sum(x.sum() for x in jax.tree.leaves(ahead(jnp.array(EDGES), sizes, shares, load)))

    shares = jnp.array(SHARES)
    assert_no_nan(jax.grad(total, argnums=(0, 1))(jnp.array(load), jnp.array(SIZES)))


def test_value_at_a_level():
    cdf, values = jnp.array([0.2, 0.5, 1.0]), jnp.array([1.0, 3.0, 4.0])
    got = at_levels((0.1, 0.2, 0.35, 0.5, 0.75, 1.0), cdf, values)
    np.testing.assert_allclose(got, [1.0, 1.0, 2.0, 3.0, 3.5, 4.0])
    flat = at_levels((0.7,), jnp.array([0.0, 0.5, 0.5]), values)
    np.testing.assert_allclose(flat, [3.0 + 1.0])
