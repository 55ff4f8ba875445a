"""Instances that do both phases, in the limits where theory or the other simulator says more."""

import numpy as np
import pytest
from eventsim_helpers import LinearTimes, make_aggregated, make_instance, make_system, within

from fluidserve._pytree import pytree
from fluidserve._typing import Number
from fluidserve.eventsim import gamma_arrivals, run
from fluidserve.timing.chunking import reread_tokens
from fluidserve.timing.model import AbstractTimeModel, Work

SECOND = LinearTimes(fixed=1.0)


def poisson(n, rate, seed):
    return gamma_arrivals(n, np.random.default_rng(seed), stratify=False) / rate


@pytest.mark.parametrize("pp", [1, 3])
@pytest.mark.parametrize("limit", [{"prefill_tokens": 1.0}, {"token_budget": 8.0}])
def test_single_tokens_wait_as_in_md1(limit, pp):
    """One prompt an iteration; behind it the first stage takes the next one of another lane."""
    n, rho = 30_000, 0.6
    arrival, n_in = poisson(n, rho, seed=1), np.full(n, 8)
    r = run(make_aggregated(SECOND, pp=pp, **limit), arrival, n_in, np.ones(n))
    waits = r.ttft - pp
    np.testing.assert_allclose(r.prefill_start - r.arrival, waits, atol=1e-9)
    expected = rho / (2 * (1 - rho))
    assert within(waits, expected, resolution=0.15)
    assert not within(waits, 1.25 * expected, resolution=0.15)
    assert within(waits <= 1e-9, 1 - rho, resolution=0.1)


def test_equal_instances_in_turn_are_queues_of_their_own():
    n, system = 3000, make_aggregated(SECOND, replicas=3, dispatch="round-robin")
    requests = (poisson(n, 1.2, seed=2), np.full(n, 8), np.full(n, 3))
    together = run(system, *requests)
    for g in range(3):
        alone = run(make_aggregated(SECOND), *(x[g::3] for x in requests))
        np.testing.assert_array_equal(together.last_token[g::3], alone.last_token)


@pytest.mark.parametrize(("n_in", "budget"), [(2048, 256), (4096, 512), (4000, 512)])
def test_pieces_read_again_what_came_before(n_in, budget):
    reads = LinearTimes(fixed=0.0, per_read=1.0)
    r = run(make_aggregated(reads, token_budget=float(budget)), np.zeros(1), [n_in], [1])
    assert r.ttft[0] == reread_tokens(n_in, budget)


@pytest.mark.parametrize("budget", [512.0, 700.0, 4096.0])
def test_a_prompt_alone_takes_the_time_of_its_pieces(budget):
    times = LinearTimes(fixed=0.01, per_new=1e-4, per_pair=1e-8, per_read=1e-6)
    system = make_aggregated(times, pp=2, token_budget=budget)
    n_in, pieces = 4096, int(-(-4096 // budget))
    before = np.arange(pieces) * budget
    r = run(system, np.zeros(1), [n_in], [1])
    # pairs add up to those of the whole prompt, whatever the pieces
    stage = 0.01 * pieces + 1e-4 * n_in + 1e-8 * n_in**2 / 2 + 1e-6 * before.sum()
    np.testing.assert_allclose(r.ttft, 2 * stage)


@pytree
class FreePrompts(AbstractTimeModel):
    """Time of decode alone."""

    def stage_time(self, work: Work) -> Number:
        decoding = work.sequences - work.prompts
        return (0.3 + 0.1 * decoding + 0.001 * work.attended) * (decoding > 0)


@pytest.mark.parametrize("limits", [{}, {"max_batch": 6}, {"kv_capacity": 150.0}])
def test_free_prompts_leave_a_decode_pool(limits):
    """The same last tokens as behind an endless link, from code that shares only the batch."""
    n, rng = 2000, np.random.default_rng(7)
    requests = (poisson(n, 3.0, seed=8), rng.integers(1, 20, n), rng.integers(2, 12, n))
    both = make_aggregated(FreePrompts(), replicas=3, **limits)
    capacity = {k: v for k, v in limits.items() if k == "kv_capacity"}
    rest = {k: v for k, v in limits.items() if k == "max_batch"}
    decode = make_instance(FreePrompts(), **capacity)
    apart = make_system(LinearTimes(fixed=0.0), decode=decode, n_decode=3, **rest)
    a, b = run(both, *requests), run(apart, *requests)
    np.testing.assert_allclose(a.last_token, b.last_token, rtol=1e-12)
    assert (a.decode_instance == b.decode_instance).all()


def test_prompts_first_starve_decode_and_pieces_do_not():
    """A load of prompts of 0.95: tokens wait for a quiet moment, or come with every iteration."""
    times = LinearTimes(fixed=0.05, per_new=0.01)
    n = 4000
    requests = (poisson(n, 0.9, seed=3), np.full(n, 100), np.full(n, 20))
    first, pieces = (
        run(make_aggregated(times, **limit), *requests, record_gaps=True)
        for limit in ({"prefill_tokens": 100.0}, {"token_budget": 40.0})
    )
    assert first.gaps is not None
    assert pieces.gaps is not None
    assert pieces.gaps.values.max() == pytest.approx(0.45)
    assert np.quantile(first.gaps.values, 0.99) > 2.0
    assert first.ttft.mean() < pieces.ttft.mean()
