"""Closed loop in the simulator: users who wait for their answer before they ask again."""

import math

import numpy as np
import pytest
from eventsim_helpers import LinearTimes, make_system, within

from fluidserve.errors import InputError
from fluidserve.eventsim import closed_window, run_closed, simulate_closed, summarise
from fluidserve.specs.applications import synthetic_workload
from fluidserve.specs.slo import Slo

TOKENS = 10_000
"""Tokens of a prompt that takes one second in `QUEUE`."""
QUEUE = LinearTimes(fixed=0.0, per_new=1.0 / TOKENS)


def repairman(users, service, think):
    """Law of the number at one exponential server that others visit after a fixed time away.

    Machine repair with any law of the time away: ``p(q) ~ service**q think**(N-q) / (N-q)!``.
    """
    logs = [
        q * math.log(service) + (users - q) * math.log(think) - math.lgamma(users - q + 1)
        for q in range(users + 1)
    ]
    weights = np.exp(np.array(logs) - max(logs))
    return weights / weights.sum()


def exponential_queue(users, requests, *, think, seed):
    """One exponential prefill server; each user decodes alone for a fixed time."""
    rng = np.random.default_rng(seed)
    n_in = np.maximum(np.rint(rng.exponential(TOKENS, requests)), 1)
    system = make_system(QUEUE, LinearTimes(fixed=think), n_decode=users)
    return run_closed(system, users, n_in, np.full(requests, 2))


def test_exponential_service_has_its_product_form():
    users, think = 6, 3.0
    records = exponential_queue(users, 30_000, think=think, seed=1)
    law = repairman(users, 1.0, think)
    rate = 1.0 - law[0]
    kept = records.window(**closed_window(users, 30_000))
    assert within(kept.ttft, users / rate - think, resolution=0.1)
    # an arrival sees the system with one user less
    assert within(
        kept.prefill_start > kept.arrival, 1 - repairman(users - 1, 1.0, think)[0], resolution=0.1
    )
    assert not within(kept.ttft, 1.15 * (users / rate - think), resolution=0.1)


@pytest.mark.parametrize(("users", "rate", "ttft"), [(3, 0.75, 1.0), (4, 1.0, 1.0), (9, 1.0, 6.0)])
def test_equal_requests_run_like_clockwork(users, rate, ttft):
    """One second of prefill and three of decode: four users fill prefill, more of them wait."""
    system = make_system(QUEUE, LinearTimes(fixed=1.5), n_decode=users)
    records = run_closed(system, users, np.full(400, TOKENS), np.full(400, 3))
    slo = Slo(ttft=1.0, tpot=2.0, attainment=0.9)
    counted = summarise(records, slo, warmup=0.1, tail=0.1)
    assert counted.throughput == pytest.approx(rate, rel=0.01)
    summary = summarise(records, slo, warmup=0.1, tail=0.1, users=users)
    assert summary.throughput == pytest.approx(rate)
    assert summary.ttft.mean == pytest.approx(ttft)
    assert summary.attainment.value == (1.0 if users <= 4 else 0.0)


@pytest.mark.parametrize("users", [50, 100, 250])
def test_crowd_at_one_prefill_server_waits_for_each_other(users):
    """With 100 ms a prompt and little decode, TTFT is a tenth of a second for every user."""
    system = make_system(LinearTimes(fixed=0.1), LinearTimes(fixed=0.01))
    records = run_closed(system, users, np.ones(10 * users), np.full(10 * users, 2))
    kept = records.window(**closed_window(users, 10 * users))
    assert kept.ttft.mean() == pytest.approx(0.1 * users, rel=0.01)


def test_every_user_has_one_request_at_a_time():
    rng, users, requests = np.random.default_rng(3), 7, 600
    system = make_system(QUEUE, LinearTimes(fixed=0.05), n_prefill=2, max_batch=4)
    # some requests end with their first token
    records = run_closed(
        system, users, rng.integers(1, TOKENS, requests), rng.integers(1, 9, requests), over=2.0
    )
    assert (np.diff(records.arrival) >= 0).all()
    starts = np.arange(users) * (2.0 / users)
    assert np.isin(starts, records.arrival).all()
    sent = np.searchsorted(records.arrival, records.arrival, side="right")
    answered = np.searchsorted(np.sort(records.last_token), records.arrival, side="right")
    assert (sent - answered).max() == users
    in_reply = np.isin(records.arrival, records.last_token)
    assert in_reply.sum() == requests - users


def test_one_user_meets_nobody_and_seeds_repeat():
    workload = synthetic_workload(200, 20, 0.5, 0.5)
    system = make_system(QUEUE, LinearTimes(fixed=0.05))
    one = simulate_closed(system, workload, 1, requests=50, seed=4)
    np.testing.assert_array_equal(one.arrival[1:], one.last_token[:-1])
    np.testing.assert_allclose(one.ttft, one.n_in / TOKENS)
    again = simulate_closed(system, workload, 1, requests=50, seed=4)
    np.testing.assert_array_equal(one.last_token, again.last_token)
    other = simulate_closed(system, workload, 1, requests=50, seed=5)
    assert not np.array_equal(one.last_token, other.last_token)


def test_wrong_input():
    system = make_system(QUEUE)
    with pytest.raises(InputError, match="concurrency = 0"):
        run_closed(system, 0, np.ones(3), np.ones(3))
    with pytest.raises(InputError, match="over"):
        run_closed(system, 1, np.ones(3), np.ones(3), over=-1.0)
    with pytest.raises(InputError, match="too few for 20 users"):
        closed_window(20, 100)
