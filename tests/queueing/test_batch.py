"""Servers that batch: limits with exact answers, and queues played forward."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidserve.queueing.batch import batching, fit_batches
from fluidserve.queueing.mgn import fit_wait
from fluidserve.testing import assert_no_nan


@functools.partial(jax.jit, static_argnames="most")
def _fit(offered, servers, shared, scv, room, most):
    server = batching(shared, scv, room, scv, most=most)

    def alone(rho, scv):
        return fit_wait(rho, servers, scv, max_servers=16)

    return fit_batches(offered, servers, server, alone, lined_up=servers), server


def fit(offered, servers, shared, scv, room=np.inf, most=1024):
    """The loss, and what a server takes; sizes are what jobs cost."""
    values = (jnp.array(float(x)) for x in (offered, servers, shared, scv, room))
    return _fit(*values, most=most)


def play(offered, servers, shared, scv, room, *, jobs=40_000, seed=0):
    """Losses of jobs in a queue, in mean own parts, and the mean batch."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1.0 / (offered * servers), jobs))
    size = np.ones(jobs) if scv == 0 else rng.gamma(1.0 / scv, scv, jobs)
    free, loss, batches, i = np.zeros(servers), np.empty(jobs), 0, 0
    while i < jobs:
        g = free.argmin()
        start = max(free[g], arrival[i])
        waiting = np.searchsorted(arrival, start, side="right")
        fits = np.searchsorted(np.cumsum(size[i:waiting]), room * (1 + 1e-9), side="right")
        j = i + max(fits, 1)
        free[g] = end = start + shared + size[i:j].sum()
        loss[i:j] = end - arrival[i:j] - shared - size[i:j]
        i, batches = j, batches + 1
    return loss[jobs // 10 :], jobs / batches


@pytest.mark.parametrize(("servers", "scv"), [(1, 0.0), (1, 0.7), (4, 0.3)])
@pytest.mark.parametrize("load", [0.3, 0.8])
def test_one_at_a_time_is_the_plain_queue(servers, scv, load):
    shared = 0.5
    found, server = fit(load / (1 + shared), servers, shared, scv, most=1)
    plain = fit_wait(jnp.array(load), jnp.array(float(servers)), jnp.array(scv / (1 + shared) ** 2))
    assert float(server.full) == 1.0
    assert float(found.batch) == pytest.approx(1.0, abs=1e-6)
    assert float(found.load) == pytest.approx(load, rel=1e-5)
    assert float(found.wait.busy) == pytest.approx(float(plain.busy), rel=1e-4)
    expected = float(plain.mean) * (1 + shared)
    assert float(found.wait.mean) == pytest.approx(
        expected, rel=0.015
    )  # 0.01 stands for no variability


def test_an_idle_server_batches_nothing():
    found, _ = fit(1e-4, 1, 0.5, 0.3)
    assert float(found.wait.mean) < 1e-3
    assert float(found.batch) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("room", [1.0, 3.0, 8.0])
def test_full_batches_set_the_capacity(room):
    """Jobs of one size: a batch holds as many as fit, and its fixed part is spread over them."""
    shared, full = 0.5, int(room)
    capacity = full / (full + shared)
    below, server = fit(0.97 * capacity, 1, shared, 0.0, room)
    above, _ = fit(1.02 * capacity, 1, shared, 0.0, room)
    assert float(server.full) == pytest.approx(full, rel=0.03)
    assert float(below.load) < 1.0
    assert float(above.load) > 1.0


def test_full_batches_of_unequal_jobs_are_smaller():
    """A batch begins with the job that did not fit before; played with a line that never ends."""
    rng, room, scv, counts = np.random.default_rng(1), 3.0, 0.6, []
    size, i = rng.gamma(1.0 / scv, scv, 60_000), 0
    while i < len(size) - 100:
        fits = np.searchsorted(np.cumsum(size[i : i + 100]), room, side="right")
        counts.append(max(fits, 1))
        i += counts[-1]
    _, server = fit(0.5, 1, 0.5, scv, room)
    assert float(server.full) == pytest.approx(np.mean(counts), rel=0.06)


CASES = [
    (0.5, 1, 0.4, 0.2, np.inf),
    (0.8, 1, 0.1, 0.6, np.inf),
    (0.6, 1, 1.0, 0.2, 6.0),
    (0.65, 1, 0.4, 0.2, 3.0),
    (0.6, 2, 0.5, 0.2, np.inf),
    (0.65, 4, 0.3, 0.3, 6.0),
]


@pytest.mark.parametrize(("offered", "servers", "shared", "scv", "room"), CASES)
def test_loss_follows_queues_played_forward(offered, servers, shared, scv, room):
    loss, batch = play(offered, servers, shared, scv, room)
    found, _ = fit(offered, servers, shared, scv, room)
    assert float(found.wait.mean) / servers == pytest.approx(loss.mean(), rel=0.12)
    assert float(found.batch) == pytest.approx(batch, rel=0.12)
    for level in (0.8, 0.9, 0.97):
        limit = np.quantile(loss, level)
        late = float(found.wait.tail(jnp.array(limit * servers)))
        assert late == pytest.approx(1.0 - level, abs=0.04)


def test_comparison_can_fail():
    loss, _ = play(0.6, 1, 1.0, 0.2, np.inf)
    single, _ = fit(0.5, 1, 1.0, 0.2, most=1)
    assert float(single.wait.mean) > 3.0 * loss.mean()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.floats(1e-4, 1.5),
    st.integers(1, 16),
    st.floats(0.0, 19.0),
    st.floats(0.0, 3.0),
    st.sampled_from([0.3, 1.0, 2.5, 40.0, np.inf]),
)
def test_losses_are_sound(offered, servers, shared, scv, room):
    found, server = fit(offered, servers, shared, scv, room)
    tail = found.wait.tail(jnp.linspace(0.0, 50.0, 51))
    assert_no_nan((found, server, tail))
    assert bool((tail >= 0.0).all())
    assert bool((tail <= 1.0).all())
    assert 1.0 <= float(found.batch) <= float(server.full) + 1e-5
