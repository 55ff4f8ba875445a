"""Static batching by hand, and what continuous batching gains over it."""

import numpy as np
import pytest
from eventsim_helpers import LinearTimes, make_aggregated

from fluidserve.eventsim import run, run_static

STEP = LinearTimes(fixed=1.0, per_new=0.1, per_pair=0.01)
REQUESTS = (np.array([0.0, 0.0, 0.5]), np.array([2, 4, 1]), np.array([2, 4, 1]))


def test_a_batch_is_padded_and_served_to_its_end():
    """Two prompts of 4 tokens, then three steps of both, though the first needs only one."""
    r = run_static(make_aggregated(STEP, max_batch=2), *REQUESTS, record_gaps=True)
    prefill, steps = 1 + 0.8 + 0.16, [1.2 + 0.02 * context for context in (5, 6, 7)]
    np.testing.assert_allclose(r.first_token[:2], prefill)
    np.testing.assert_allclose(r.gaps.of(0), steps[:1])
    np.testing.assert_allclose(r.gaps.of(1), steps)
    np.testing.assert_allclose(r.prefill_start[2], prefill + sum(steps))
    np.testing.assert_allclose(r.last_token[2], prefill + sum(steps) + 1.105)
    assert r.utilisation.prefill == pytest.approx((prefill + 1.105) / r.last_token.max())


def test_memory_holds_the_padded_batch():
    """Twice 8 tokens do not fit into 15, so nobody has company."""
    r = run_static(make_aggregated(STEP, kv_capacity=15.0), *REQUESTS)
    np.testing.assert_allclose(r.prefill_start[1:], r.last_token[:2])
    assert r.utilisation.decode_kv < 8 / 15


def test_single_tokens_leave_with_prefill():
    r = run_static(make_aggregated(STEP, pp=2, replicas=2), np.zeros(5), np.ones(5), np.ones(5))
    np.testing.assert_allclose(r.last_token[[0, 2, 4]], 2 * (1 + 0.3 + 0.015))
    np.testing.assert_allclose(r.last_token[[1, 3]], 2 * (1 + 0.2 + 0.01))


def test_equal_requests_that_come_together_are_served_alike():
    system = make_aggregated(STEP, max_batch=4)
    requests = (np.zeros(12), np.full(12, 5), np.full(12, 6))
    static, continuous = run_static(system, *requests), run(system, *requests)
    np.testing.assert_allclose(static.last_token, continuous.last_token)


def test_continuous_batching_wastes_no_places():
    rng = np.random.default_rng(3)
    system = make_aggregated(LinearTimes(fixed=1.0, per_new=0.01), max_batch=8)
    requests = (np.zeros(400), np.ones(400), rng.geometric(0.05, 400))
    static, continuous = run_static(system, *requests), run(system, *requests)
    longest = requests[2].reshape(-1, 8).max(1)
    np.testing.assert_allclose(static.last_token.max(), 1.08 * longest.sum())
    assert continuous.last_token.max() < 0.5 * static.last_token.max()
