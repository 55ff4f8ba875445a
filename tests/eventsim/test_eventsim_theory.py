"""The simulator against queueing theory. Prefill is a queue of its own when n_out is 1."""

import math

import numpy as np
import pytest
from eventsim_helpers import LinearTimes, batch_means, make_instance, make_system, within

from fluidserve.eventsim import gamma_arrivals, run

TOKENS = 10_000
"""Tokens of a prompt that takes one second in `QUEUE`."""
QUEUE = LinearTimes(fixed=0.0, per_new=1.0 / TOKENS)


def poisson(n, rate, seed):
    return gamma_arrivals(n, np.random.default_rng(seed), stratify=False) / rate


def waits(system, arrival, service):
    """Waits before prefill of requests with the given service times, s."""
    n_in = np.maximum(np.rint(np.asarray(service) * TOKENS), 1)
    records = run(system, arrival, n_in, np.ones(len(arrival), int))
    return records.prefill_start - records.arrival


def md1_cdf(t, rho):
    """P(W <= t) for service 1; Erlang 1909, e.g. Gross and Harris; alternating, so small t only."""
    terms = ((rho * (k - t)) ** k / math.factorial(k) for k in range(int(t) + 1))
    return (1 - rho) * sum(x * math.exp(-rho * (k - t)) for k, x in enumerate(terms))


def erlang_c(servers, load):
    """P(W > 0) in M/M/c."""
    top = load**servers / math.factorial(servers) / (1 - load / servers)
    return top / (sum(load**k / math.factorial(k) for k in range(servers)) + top)


@pytest.mark.parametrize(("rho", "n"), [(0.3, 20_000), (0.6, 30_000), (0.8, 60_000)])
def test_md1_mean_and_distribution(rho, n):
    w = waits(make_system(QUEUE), poisson(n, rho, seed=1), np.ones(n))
    assert within(w, rho / (2 * (1 - rho)), resolution=0.15)
    for t in (0.0, 0.5, 1.0, 2.3, 4.0):
        assert within(w <= t + 1e-9, md1_cdf(t, rho), resolution=0.1), t


def test_comparison_can_fail():
    n, rho = 30_000, 0.6
    w = waits(make_system(QUEUE), poisson(n, rho, seed=1), np.ones(n))
    assert not within(w, 1.25 * rho / (2 * (1 - rho)), resolution=0.2)
    assert not within(w <= 1.0, md1_cdf(1.2, rho))
    slower = make_system(LinearTimes(fixed=0.0, per_new=1.08 / TOKENS))
    w = waits(slower, poisson(n, rho, seed=1), np.ones(n))
    assert not within(w, rho / (2 * (1 - rho)), resolution=0.2)


@pytest.mark.parametrize("law", ["two-point", "lognormal"])
def test_mg1_pollaczek_khinchine(law):
    n, rho, rng = 40_000, 0.7, np.random.default_rng(2)
    if law == "two-point":
        service = rng.choice([0.5, 3.0], p=[0.8, 0.2], size=n)
        second = 0.8 * 0.25 + 0.2 * 9.0
    else:
        service = rng.lognormal(-0.5 * math.log(1.5), math.sqrt(math.log(1.5)), size=n)
        second = 1.5
    w = waits(make_system(QUEUE), poisson(n, rho, seed=3), service)
    assert within(w, rho * second / (2 * (1 - rho)), resolution=0.2)
    assert within(w > 0, rho, resolution=0.05)


@pytest.mark.parametrize(("servers", "rho"), [(2, 0.7), (5, 0.8)])
def test_mmc_erlang_c(servers, rho):
    n, rng = 40_000, np.random.default_rng(4)
    system = make_system(QUEUE, n_prefill=servers)
    w = waits(system, poisson(n, rho * servers, seed=5), rng.exponential(size=n))
    c = erlang_c(servers, rho * servers)
    assert within(w > 0, c, resolution=0.1)
    assert within(w, c / (servers * (1 - rho)), resolution=0.25)


def test_tandem_of_two_deterministic_stages():
    """DistServe (OSDI 2024), equation 2: mean TTFT of inter-operator parallelism of degree 2."""
    n, d, rate = 30_000, 1.0, 1.4
    arrival = poisson(n, rate, seed=6)
    stages = make_instance(LinearTimes(fixed=d / 2), pp=2)
    records = run(make_system(QUEUE, prefill=stages), arrival, np.ones(n), np.ones(n))
    assert within(records.ttft, d + rate * d**2 / (4 * (2 - rate * d)), resolution=0.05)


def test_tandem_equals_its_recursion():
    """C[i, s] = max(C[i - 1, s], C[i, s - 1]) + u[i], to rounding."""
    n, pp, rng = 500, 3, np.random.default_rng(7)
    arrival, service = poisson(n, 0.9, seed=8), rng.integers(1, 2 * TOKENS, size=n)
    records = run(
        make_system(QUEUE, prefill=make_instance(QUEUE, pp=pp)), arrival, service, np.ones(n)
    )
    free, ends = np.zeros(pp), []
    for a, u in zip(arrival, service / TOKENS, strict=True):
        t = a
        for s in range(pp):
            t = free[s] = max(free[s], t) + u
        ends.append(t)
    np.testing.assert_allclose(records.prefill_end, ends, rtol=1e-12)


def test_many_servers_equal_the_kiefer_wolfowitz_recursion():
    n, servers, rng = 2000, 3, np.random.default_rng(9)
    arrival, service = poisson(n, 2.8, seed=10), rng.integers(1, 2 * TOKENS, size=n) / TOKENS
    free, expected = np.zeros(servers), []
    for a, u in zip(arrival, service, strict=True):
        first = free.argmin()
        start = max(a, free[first])
        free[first] = start + u
        expected.append(start - a)
    got = waits(make_system(QUEUE, n_prefill=servers), arrival, service)
    np.testing.assert_allclose(got, expected, atol=1e-9)


def test_batches_of_prompts_deterministic_service():
    """Bulk service M/D^[2]/1: departures two at a time cannot exceed twice the single rate."""
    n = 5_000
    system = make_system(LinearTimes(fixed=1.0), prefill_batch=2)
    arrival = poisson(n, 1.5, seed=11)
    records = run(system, arrival, np.ones(n), np.ones(n))
    starts, sizes = np.unique(records.prefill_start, return_counts=True)
    assert sizes.max() == 2
    assert np.diff(starts).min() >= 1.0 - 1e-9
    # A batch is 1 only when nothing else waited: the next request came after it started.
    firsts = np.searchsorted(records.prefill_start, starts)
    lone = firsts[sizes == 1]
    lone = lone[lone + 1 < n]
    assert (records.arrival[lone + 1] > records.prefill_start[lone]).all()


@pytest.mark.parametrize(("law", "seed"), [("constant", 12), ("geometric", 13)])
def test_decode_product_form(law, seed):
    """Processor sharing with step a + b n: E TPOT = (a + b) / (1 - lambda E[o] b), any law of o.

    The state-dependent sharing queue is insensitive (Cohen 1979), its number in system negative
    binomial. Waiting for the end of a running iteration adds about half a step per request.
    """
    n, a, b, load = 8_000, 10e-3, 0.5e-3, 0.6
    rng = np.random.default_rng(seed)
    steps = np.full(n, 300) if law == "constant" else rng.geometric(1 / 300, size=n)
    rate = load / (300 * b)
    system = make_system(LinearTimes(fixed=1e-9), LinearTimes(fixed=a, per_new=b))
    records = run(system, poisson(n, rate, seed), np.ones(n), steps + 1)
    expected = (a + b) / (1 - load)
    kept = records.window()
    per_token = (kept.last_token - kept.first_token) / 300
    assert within(per_token, expected * (1 + 0.5 / 300), resolution=0.08, slack=0.01)
    weighted = expected * rate * 300
    assert records.utilisation.decode_batch == pytest.approx(weighted, rel=0.06)


def test_decode_instances_share_the_load():
    """Two instances at twice the rate: fewest-first can only be better than one at the rate."""
    n, step = 3000, LinearTimes(fixed=10e-3, per_new=0.5e-3)
    one = make_system(LinearTimes(fixed=1e-9), step)
    two = make_system(LinearTimes(fixed=1e-9), step, n_decode=2)
    tpot = [
        batch_means(run(s, poisson(n, r, 14), np.ones(n), np.full(n, 301)).tpot)[0]
        for s, r in ((one, 4.0), (two, 8.0))
    ]
    assert 0.8 * tpot[0] < tpot[1] < tpot[0]


def test_link_is_md1():
    n, rho = 20_000, 0.7
    system = make_system(LinearTimes(fixed=1e-9), link_bandwidth=10.0, handover_overhead=0.5)
    records = run(system, poisson(n, rho, seed=15), np.full(n, 10), np.full(n, 2))
    wait = records.kv_end - records.kv_start - 1.0 - 0.5
    assert within(wait, rho / (2 * (1 - rho)), resolution=0.2)
    assert records.utilisation.link == pytest.approx(rho, rel=0.03)


@pytest.mark.parametrize("limit", ["slots", "memory"])
def test_one_slot_is_an_mg1_queue(limit):
    """Geometric numbers of equal steps, one request at a time: Pollaczek-Khinchine again."""
    n, rho, mean, rng = 15_000, 0.6, 8, np.random.default_rng(16)
    steps = rng.geometric(1 / mean, size=n)
    step = LinearTimes(fixed=1 / mean)
    prefill = LinearTimes(fixed=1e-9)
    if limit == "slots":
        system = make_system(prefill, step, max_batch=1)
    else:
        room = 1000.0 + steps.max() + 1  # for one prompt of 1000 tokens, not for two
        system = make_system(prefill, decode=make_instance(step, kv_capacity=room))
    records = run(system, poisson(n, rho, seed=17), np.full(n, 1000), steps + 1)
    scv = 1 - 1 / mean
    expected = rho * (1 + scv) / (2 * (1 - rho))
    assert within(records.kv_start - records.prefill_end, expected, resolution=0.25)


@pytest.mark.parametrize("rule", ["jsq", "round-robin"])
def test_separate_queues_equal_their_recursion(rule):
    n, servers, rng = 2000, 3, np.random.default_rng(14)
    arrival, service = poisson(n, 2.6, seed=15), rng.integers(1, 2 * TOKENS, size=n) / TOKENS
    ends, expected = [[0.0] for _ in range(servers)], []
    for i, (a, u) in enumerate(zip(arrival, service, strict=True)):
        fewest = np.argmin([sum(e > a for e in row) for row in ends])
        row = ends[i % servers if rule == "round-robin" else fewest]
        start = max(a, row[-1])
        row.append(start + u)
        expected.append(start - a)
    got = waits(make_system(QUEUE, n_prefill=servers, dispatch=rule), arrival, service)
    np.testing.assert_allclose(got, expected, atol=1e-9)


def test_random_dispatch_splits_poisson_traffic():
    """Every instance is an M/D/1 queue at its share of the rate, whatever the others do."""
    n, rho, servers = 60_000, 0.6, 3
    system = make_system(QUEUE, n_prefill=servers, dispatch="random")
    w = waits(system, poisson(n, rho * servers, seed=16), np.ones(n))
    assert within(w, rho / (2 * (1 - rho)), resolution=0.15)
    assert within(w <= 1.0 + 1e-9, md1_cdf(1.0, rho), resolution=0.1)


def test_random_dispatch_follows_its_seed():
    n = 200
    system = make_system(QUEUE, n_prefill=3, n_decode=3, dispatch="random")
    requests = poisson(n, 2.0, seed=17), np.full(n, TOKENS), np.full(n, 3)
    first, again, other = (run(system, *requests, seed=s) for s in (1, 1, 2))
    for pool in ("prefill_instance", "decode_instance"):
        np.testing.assert_array_equal(getattr(first, pool), getattr(again, pool))
        assert (getattr(first, pool) != getattr(other, pool)).any()
    slower = run(system, requests[0] * 3.0, *requests[1:], seed=1)
    np.testing.assert_array_equal(first.prefill_instance, slower.prefill_instance)
