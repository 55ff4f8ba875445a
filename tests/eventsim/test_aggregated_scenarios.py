"""Instances that do both phases, two to four requests at a time, worked out by hand."""

import numpy as np
import pytest
from eventsim_helpers import LinearTimes, make_aggregated

from fluidserve.errors import InputError
from fluidserve.eventsim import run, run_closed

STEP = LinearTimes(fixed=1.0, per_new=0.1)
SECOND = LinearTimes(fixed=1.0)


def test_prompts_go_first():
    """The second prompt arrives while the first is computed, and delays its decode."""
    requests = (np.array([0.0, 1.5]), np.array([10, 10]), np.array([3, 2]))
    r = run(make_aggregated(STEP), *requests, record_gaps=True)
    np.testing.assert_allclose(r.prefill_start, [0, 2])
    for ends in (r.prefill_end, r.first_token, r.kv_start, r.kv_end):
        np.testing.assert_allclose(ends, [2, 4])
    np.testing.assert_allclose(r.decode_start, [4, 4])
    np.testing.assert_allclose(r.first_step, [5.2, 5.2])
    np.testing.assert_allclose(r.last_token, [6.3, 5.2])
    np.testing.assert_allclose(r.gaps.of(0), [3.2, 1.1])
    np.testing.assert_allclose(r.gaps.of(1), [1.2])
    assert r.prefill_instance.tolist() == r.decode_instance.tolist() == [0, 0]
    u = r.utilisation
    np.testing.assert_allclose(
        [u.horizon, u.prefill, u.link, u.decode, u.decode_batch],
        [6.3, 4 / 6.3, 0, 2.3 / 6.3, (4.3 + 1.2) / 6.3],
    )


def test_prompts_together_within_a_number_of_tokens():
    """In order and never more than fit, but a prompt over the number is computed alone."""
    arrival, n_in = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5]), np.array([5, 4, 6, 3, 20, 1])
    r = run(make_aggregated(STEP, prefill_tokens=10.0), arrival, n_in, np.ones(6))
    np.testing.assert_allclose(r.prefill_start, [0, 1.5, 1.5, 3.5, 4.8, 7.8])
    np.testing.assert_allclose(r.prefill_end, [1.5, 3.5, 3.5, 4.8, 7.8, 8.9])
    np.testing.assert_allclose(r.last_token, r.first_token)
    assert (r.tpot == 0).all()


def test_pieces_fill_the_budget():
    """20 tokens as 8, 8 and 4, the last beside a prompt of 3; each piece reads those before."""
    times = LinearTimes(fixed=1.0, per_new=0.1, per_pair=0.01)
    requests = (np.array([0.0, 3.0]), np.array([20, 3]), np.array([2, 3]))
    r = run(make_aggregated(times, token_budget=8.0), *requests, record_gaps=True)
    np.testing.assert_allclose(r.prefill_start, [0, 4.88])
    np.testing.assert_allclose(r.first_token, 2.12 + 2.76 + 1 + 0.7 + 0.72 + 0.045)
    # decode of both at contexts 21 and 4, then of the second at 5
    np.testing.assert_allclose(r.decode_start, 7.345)
    np.testing.assert_allclose(r.last_token, [8.795, 9.945])
    np.testing.assert_allclose(r.gaps.of(1), [1.45, 1.15])


def test_pieces_run_beside_decode():
    """Request 0 decodes while 2 + 3 tokens of the next prompt are computed in its iterations."""
    requests = (np.array([0.0, 0.5]), np.array([3, 5]), np.array([4, 2]))
    r = run(make_aggregated(STEP, token_budget=4.0), *requests, record_gaps=True)
    # 3 tokens until 1.3; 1 + 3; 1 + 2; then both
    np.testing.assert_allclose(r.first_token, [1.3, 4.0])
    np.testing.assert_allclose(r.gaps.of(0), [1.4, 1.3, 1.2])
    np.testing.assert_allclose(r.last_token, [5.2, 5.2])
    assert r.utilisation.prefill == pytest.approx(4.0 / 5.2)


def test_decode_may_leave_no_budget():
    requests = (np.array([0.0, 0.0, 0.5]), np.ones(3), np.array([5, 5, 1]))
    r = run(make_aggregated(SECOND, token_budget=2.0), *requests)
    np.testing.assert_allclose(r.first_token, [1, 1, 6])
    np.testing.assert_allclose(r.last_token, [5, 5, 6])


@pytest.mark.parametrize("budget", [None, 64.0])
def test_room_is_reserved_in_full_and_in_order(budget):
    """10 + 5 tokens leave no room for 10 + 6 in 30, and 1 + 2 must not overtake."""
    system = make_aggregated(SECOND, kv_capacity=30.0, token_budget=budget)
    r = run(system, np.zeros(3), np.array([10, 10, 1]), np.array([5, 6, 2]))
    np.testing.assert_allclose(r.prefill_start, [0, 5, 5])
    np.testing.assert_allclose(r.last_token, [5, 11, 7])
    np.testing.assert_allclose(r.memory_stall, [0, 5, 0])
    assert r.utilisation.decode_kv == pytest.approx((15 * 5 + 16 * 6 + 3 * 2) / 30 / 11)


@pytest.mark.parametrize("budget", [None, 64.0])
def test_a_freed_place_is_taken_in_the_same_instant(budget):
    system = make_aggregated(SECOND, max_batch=2, token_budget=budget)
    r = run(system, np.array([0.0, 0.0, 3.0]), np.ones(3), np.array([3, 6, 2]))
    np.testing.assert_allclose(r.prefill_start, [0, 0, 3])
    np.testing.assert_allclose(r.first_token, [1, 1, 4])
    np.testing.assert_allclose(r.last_token, [3, 6 if budget else 7, 5])
    assert (r.memory_stall == 0).all()


def test_an_arrival_at_the_end_of_an_iteration_is_in_the_next():
    r = run(make_aggregated(SECOND), np.array([0.0, 2.0]), np.ones(2), np.array([4, 1]))
    np.testing.assert_allclose(r.first_token, [1, 3])
    np.testing.assert_allclose(r.last_token, [5, 3])


def test_the_youngest_loses_its_memory():
    """5 + 5, then 6 + 6 tokens fit into 12; at 7 + 7 the second gives way, with 3 tokens made."""
    system = make_aggregated(STEP, kv_capacity=12.0, kv_policy="preempt")
    r = run(system, np.zeros(2), np.full(2, 4), np.full(2, 5), record_gaps=True)
    assert r.preempted.tolist() == [0, 1]
    np.testing.assert_allclose(r.first_token, 1.8)
    np.testing.assert_allclose(r.gaps.of(0), [1.2, 1.2, 1.1, 1.1])
    # computed anew as a prompt of 4 + 3 tokens from 6.4, which yields the fourth token
    np.testing.assert_allclose(r.gaps.of(1), [1.2, 1.2, 8.1 - 4.2, 1.1])
    np.testing.assert_allclose(r.last_token, [6.4, 9.2])
    np.testing.assert_allclose(r.memory_stall, [0, 2.2])
    held = 8 * 1.8 + 10 * 1.2 + 12 * 1.2 + 7 * 1.1 + 8 * 1.1 + 7 * 1.7 + 8 * 1.1
    assert r.utilisation.decode_kv == pytest.approx(held / 12 / 9.2)


def test_memory_lost_before_the_second_token():
    """Two prompts fit, but not their first tokens: the second token comes from a prefill."""
    system = make_aggregated(STEP, kv_capacity=9.0, kv_policy="preempt")
    r = run(system, np.zeros(2), np.full(2, 4), np.full(2, 2), record_gaps=True)
    assert r.preempted.tolist() == [0, 1]
    np.testing.assert_allclose(r.prefill_start, 0)
    np.testing.assert_allclose(r.first_token, 1.8)
    np.testing.assert_allclose(r.decode_start, [1.8, 2.9])
    np.testing.assert_allclose(r.first_step, [2.9, 4.4])
    np.testing.assert_allclose(r.last_token, [2.9, 4.4])


def test_a_prompt_in_pieces_loses_its_memory():
    """The first request outgrows a memory that half a prompt of 6 tokens is in."""
    system = make_aggregated(SECOND, kv_capacity=9.0, kv_policy="preempt", token_budget=3.0)
    r = run(system, np.array([0.0, 0.5]), np.array([2, 6]), np.array([5, 2]))
    # 2 tokens; 1 + 2 of 6, and 3 + 6 tokens are held; the first then needs 4
    assert r.preempted.tolist() == [0, 1]
    np.testing.assert_allclose(r.prefill_start, [0, 1])
    np.testing.assert_allclose(r.first_token, [1, 7])
    np.testing.assert_allclose(r.last_token, [5, 8])


def test_lanes_pass_the_stages():
    """Two stages, so two lanes; the second takes the prompt that the first leaves over."""
    system = make_aggregated(SECOND, pp=2, prefill_tokens=1.0)
    r = run(system, np.zeros(3), np.ones(3), np.full(3, 2), record_gaps=True)
    np.testing.assert_allclose(r.prefill_start, [0, 1, 2])
    np.testing.assert_allclose(r.first_token, [2, 3, 4])
    # lane 1 decodes request 1 from 3, lane 0 the others from 4
    np.testing.assert_allclose(r.decode_start, [4, 3, 4])
    np.testing.assert_allclose(r.last_token, [6, 5, 6])
    assert r.utilisation.prefill == pytest.approx(6 / 12)
    assert r.utilisation.decode == pytest.approx(4 / 12)


def test_an_idle_lane_takes_what_another_makes_room_for():
    """Lane 0 holds all places until 4, computes the third prompt and leaves the fourth."""
    system = make_aggregated(SECOND, pp=2, prefill_tokens=2.0, max_batch=2)
    r = run(system, np.zeros(4), np.array([1, 1, 2, 1]), np.array([2, 2, 1, 1]))
    np.testing.assert_allclose(r.last_token, [4, 4, 6, 7])


def test_fewest_requests_then_lowest_index():
    system = make_aggregated(SECOND, replicas=2)
    r = run(system, np.array([0.0, 0.0, 0.0, 4.5]), np.ones(4), np.array([9, 2, 9, 9]))
    assert r.decode_instance.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("budget", [None, 8.0])
def test_one_user_sends_when_answered(budget):
    system = make_aggregated(STEP, token_budget=budget)
    n_in, n_out = np.array([10, 3, 12]), np.array([3, 1, 2])
    closed = run_closed(system, 1, n_in, n_out)
    again = run(system, closed.arrival, n_in, n_out)
    np.testing.assert_array_equal(closed.arrival[1:], closed.last_token[:-1])
    np.testing.assert_array_equal(closed.last_token, again.last_token)


@pytest.mark.parametrize("budget", [None, 64.0])
def test_cached_tokens_are_read(budget):
    """Half of 10 tokens is cached: 5 are computed and attend 5 * 5 + 5 * 5 / 2 pairs."""
    times = LinearTimes(fixed=1.0, per_new=0.1, per_pair=0.01)
    system = make_aggregated(times, prefix_hit=0.5, token_budget=budget)
    r = run(system, np.zeros(1), np.array([10]), np.ones(1))
    np.testing.assert_allclose(r.first_token, 1 + 0.5 + 0.375)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"kv_capacity": 11.0}, "instance.kv_capacity = 11 tokens is less than the 12"),
        ({"replicas": 1.5}, "system.replicas = 1.5 must be a whole number"),
        ({"max_batch": 0.0}, "system.max_batch = 0.0 must be at least 1"),
        ({"token_budget": 0.5}, "system.token_budget = 0.5 must be at least 1"),
    ],
)
def test_what_cannot_be_simulated(changes, text):
    with pytest.raises(InputError, match=text):
        run(make_aggregated(STEP, **changes), np.zeros(1), np.array([10]), np.array([2]))
