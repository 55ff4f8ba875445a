"""Three requests at a time, worked out by hand."""

import numpy as np
import pytest
from eventsim_helpers import LinearTimes, make_instance, make_system

from fluidserve.eventsim import run

STEP = LinearTimes(fixed=0.5, per_new=0.25, per_pair=0.01)


def handover_system(first_token):
    """Prefill 1 s; pulls of 2, 2 and 4 s in a queue, 0.25 s on top; steps by `STEP`."""
    return make_system(
        LinearTimes(fixed=1.0),
        STEP,
        link_bandwidth=5.0,
        handover_overhead=0.25,
        first_token=first_token,
    )


REQUESTS = (np.array([0.0, 0.0, 0.5]), np.array([10, 10, 20]), np.array([6, 4, 2]))


def test_first_token_from_prefill():
    r = run(handover_system("prefill"), *REQUESTS, record_gaps=True)
    np.testing.assert_allclose(r.prefill_start, [0, 1, 2])
    np.testing.assert_allclose(r.prefill_end, [1, 2, 3])
    np.testing.assert_allclose(r.kv_start, [1, 2, 3])
    np.testing.assert_allclose(r.kv_end, [3.25, 5.25, 9.25])
    # Request 0 steps at context 11, 12, 13 (0.86, 0.87, 0.88) until 5.86, where 1 joins; both
    # step at context 25 and 27 (1.25, 1.27) until 8.38, then 1 alone at 13 (0.88) until 9.26.
    np.testing.assert_allclose(r.decode_start, [3.25, 5.86, 9.26])
    np.testing.assert_allclose(r.first_token, [1, 2, 3])
    np.testing.assert_allclose(r.last_token, [8.38, 9.26, 10.22])
    np.testing.assert_allclose(r.ttft, [1, 2, 2.5])
    np.testing.assert_allclose(r.tpot, [7.38 / 5, 7.26 / 3, 7.22])
    np.testing.assert_allclose(r.gaps.of(0), [3.11, 0.87, 0.88, 1.25, 1.27])
    np.testing.assert_allclose(r.gaps.of(1), [5.11, 1.27, 0.88])
    np.testing.assert_allclose(r.gaps.of(2), [7.22])
    u = r.utilisation
    np.testing.assert_allclose(
        [u.horizon, u.prefill, u.link, u.decode, u.decode_batch],
        [10.22, 3 / 10.22, 8 / 10.22, 6.97 / 10.22, (5.13 + 3.4 + 0.96) / 10.22],
    )
    assert u.prefill_kv == u.decode_kv == 0.0  # of endless room


def test_first_token_from_decode():
    r = run(handover_system("decode"), *REQUESTS, record_gaps=True)
    np.testing.assert_allclose(r.prefill_end, [1, 2, 3])
    np.testing.assert_allclose(r.kv_end, [3.25, 5.25, 9.25])
    # 0 at context 10, 11, 12 until 5.83; 0 and 1 at 23, 25, 27 until 9.58; 1 and 2 at 33 until
    # 10.91; 2 at 21 until 11.87.
    np.testing.assert_allclose(r.decode_start, [3.25, 5.83, 9.58])
    np.testing.assert_allclose(r.first_token, [4.10, 7.06, 10.91])
    np.testing.assert_allclose(r.last_token, [9.58, 10.91, 11.87])
    np.testing.assert_allclose(r.ttft, [4.10, 7.06, 10.41])
    np.testing.assert_allclose(r.gaps.of(1), [1.25, 1.27, 1.33])


def test_one_token_requests():
    single = (np.array([0.0, 0.0, 0.5]), np.array([10, 10, 20]), np.array([1, 1, 1]))
    r = run(handover_system("prefill"), *single, record_gaps=True)
    np.testing.assert_allclose(r.last_token, [1, 2, 3])
    np.testing.assert_allclose(r.kv_end, [1, 2, 3])
    assert (r.decode_instance == -1).all()
    assert (r.tpot == 0).all()
    assert len(r.gaps.values) == 0
    r = run(handover_system("decode"), *single)
    np.testing.assert_allclose(r.first_token, [4.10, 6.10, 10.20])
    np.testing.assert_allclose(r.last_token, r.first_token)
    assert (r.tpot == 0).all()


def test_pipeline_stages():
    """Two stages of 1 s in prefill; two lanes through two stages of 0.5 s in decode."""
    system = make_system(
        LinearTimes(fixed=1.0),
        prefill=make_instance(LinearTimes(fixed=1.0), pp=2),
        decode=make_instance(LinearTimes(fixed=0.5), pp=2),
    )
    r = run(system, np.zeros(3), np.ones(3), np.array([4, 2, 2]), record_gaps=True)
    np.testing.assert_allclose(r.prefill_start, [0, 1, 2])
    np.testing.assert_allclose(r.prefill_end, [2, 3, 4])
    # Lane 0 runs from 2 and again from 3; lane 1 finds the first stage busy until 3.5 and takes
    # the second one from 4 to 4.5. Request 2 arrives at 4, as lane 0 begins its third iteration,
    # and joins lane 0, which is as full as lane 1 and first.
    np.testing.assert_allclose(r.decode_start, [2, 3.5, 4])
    np.testing.assert_allclose(r.last_token, [5, 4.5, 5])
    np.testing.assert_allclose(r.gaps.of(0), [1, 1, 1])


def test_full_decode_pool_holds_prefill_back():
    """One slot; prefill memory holds one prompt, which stays until the slot is free."""
    system = make_system(
        LinearTimes(fixed=1.0),
        LinearTimes(fixed=1.0),
        prefill=make_instance(LinearTimes(fixed=1.0), kv_capacity=10.0),
        max_batch=1,
    )
    r = run(system, np.zeros(3), np.full(3, 10), np.array([5, 2, 2]))
    np.testing.assert_allclose(r.prefill_start, [0, 1, 5])
    np.testing.assert_allclose(r.prefill_end, [1, 2, 6])
    np.testing.assert_allclose(r.kv_start, [1, 5, 6])
    np.testing.assert_allclose(r.last_token, [5, 6, 7])
    np.testing.assert_allclose(r.memory_stall, [0, 0, 3])
    assert r.utilisation.prefill_kv == pytest.approx((1 + 4 + 1) / 7)


def test_slow_pull_holds_prefill_back():
    """Memory is free when the pull has ended, not when it begins."""
    system = make_system(
        LinearTimes(fixed=1.0),
        prefill=make_instance(LinearTimes(fixed=1.0), kv_capacity=10.0),
        link_bandwidth=5.0,
    )
    r = run(system, np.zeros(2), np.full(2, 10), np.full(2, 2))
    np.testing.assert_allclose(r.kv_end, [3, 6])
    np.testing.assert_allclose(r.prefill_start, [0, 3])
    np.testing.assert_allclose(r.memory_stall, [0, 2])


def test_decode_room_is_reserved_in_full_and_in_order():
    """10 + 5 tokens leave no room for 10 + 6 in 30, and 1 + 2 must not overtake."""
    system = make_system(
        LinearTimes(fixed=1.0),
        decode=make_instance(LinearTimes(fixed=1.0), kv_capacity=30.0),
    )
    r = run(system, np.zeros(3), np.array([10, 10, 1]), np.array([5, 6, 2]))
    np.testing.assert_allclose(r.kv_start, [1, 5, 5])
    np.testing.assert_allclose(r.last_token, [5, 10, 6])


def test_a_freed_slot_is_filled_in_the_same_instant():
    """Request 2 takes the slot of 0 and is in the very next iteration, beside 1."""
    system = make_system(
        LinearTimes(fixed=1.0), LinearTimes(fixed=0.5, per_new=0.5), prefill_batch=3, max_batch=2
    )
    r = run(system, np.zeros(3), np.ones(3), np.array([3, 6, 2]))
    np.testing.assert_allclose(r.prefill_end, 1)
    np.testing.assert_allclose(r.kv_start, [1, 1, 4])
    np.testing.assert_allclose(r.decode_start, [1, 1, 4])
    np.testing.assert_allclose(r.last_token, [4, 7.5, 5.5])


def test_prompts_computed_together():
    """Up to two at a time, whatever waits; a lone prompt does not wait for company."""
    system = make_system(LinearTimes(fixed=1.0, per_new=0.1), prefill_batch=2)
    r = run(system, np.array([0.0, 0.1, 0.2, 0.3]), np.full(4, 5), np.ones(4))
    np.testing.assert_allclose(r.prefill_start, [0, 1.5, 1.5, 3.5])
    np.testing.assert_allclose(r.prefill_end, [1.5, 3.5, 3.5, 5.0])


def test_idle_longest_takes_the_prompt():
    system = make_system(LinearTimes(fixed=0.0, per_new=1.0), n_prefill=2)
    r = run(system, np.array([0.0, 0.0, 10.0, 20.0]), np.array([3, 2, 1, 1]), np.ones(4))
    assert r.prefill_instance.tolist() == [0, 1, 1, 0]


def test_fewest_requests_then_lowest_index():
    system = make_system(LinearTimes(fixed=0.1), LinearTimes(fixed=1.0), n_decode=2)
    r = run(system, np.zeros(4), np.ones(4), np.array([9, 2, 9, 9]))
    assert r.decode_instance.tolist() == [0, 1, 0, 1]


def test_prompts_computed_together_within_a_budget_of_tokens():
    """In order and never more than fit, but a prompt over the budget is computed alone."""
    system = make_system(LinearTimes(fixed=1.0, per_new=0.1), prefill_batch=9, prefill_tokens=10.0)
    arrival, n_in = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5]), np.array([5, 4, 6, 3, 20, 1])
    r = run(system, arrival, n_in, np.ones(6))
    np.testing.assert_allclose(r.prefill_start, [0, 1.5, 1.5, 3.5, 4.8, 7.8])
    np.testing.assert_allclose(r.prefill_end, [1.5, 3.5, 3.5, 4.8, 7.8, 8.9])
