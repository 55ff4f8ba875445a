"""Request streams, metrics, goodput, and what is refused."""

import dataclasses
import math

import numpy as np
import pytest
from eventsim_helpers import INF, LinearTimes, make_instance, make_system, within, workload
from scipy.optimize import brentq

from fluidserve.errors import InputError
from fluidserve.eventsim import (
    attainment,
    draw_requests,
    estimate,
    gamma_arrivals,
    goodput,
    run,
    simulate,
    streams,
    summarise,
    trace_arrivals,
)
from fluidserve.specs.slo import Slo
from fluidserve.specs.workload import IndependentLengths, Lognormal, Workload

CHAT = Workload(
    name="chat",
    lengths=IndependentLengths(
        n_in=Lognormal(mean=100.0, cv=0.8, cap=1000.0),
        n_out=Lognormal(mean=20.0, cv=1.0, cap=200.0),
    ),
)
SYSTEM = make_system(
    LinearTimes(fixed=0.01, per_new=0.0005), LinearTimes(fixed=0.01, per_new=0.0005)
)


@pytest.mark.parametrize("scv", [0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("stratify", [True, False])
def test_gamma_gaps_have_the_moments(scv, stratify):
    n = 40_000
    times = gamma_arrivals(n, np.random.default_rng(1), scv=scv, stratify=stratify)
    gaps = np.diff(times, prepend=0.0)
    if stratify:
        assert gaps.mean() == pytest.approx(1, rel=1e-9)
        assert gaps.var() == pytest.approx(scv, rel=0.01)
    else:
        assert within(gaps, 1) or scv == 0
        assert scv == 0 or within((gaps - 1) ** 2, scv, resolution=0.2)


def test_poisson_counts():
    """Mean and variance of the number of arrivals in 5 s are both 5, also when stratified."""
    for stratify in (True, False):
        times = gamma_arrivals(50_000, np.random.default_rng(2), stratify=stratify)
        counts = np.bincount((times / 5).astype(int))[:-1]
        assert within(counts, 5)
        assert within((counts - 5) ** 2, 5, resolution=0.2)


def test_a_trace_is_replayed_in_order():
    np.testing.assert_allclose(trace_arrivals(5, np.array([2.0, 3.0, 7.0])), [0, 0.4, 2, 3, 3.4])
    w = workload([1, 2, 3], [4, 5, 6], arrivals=np.array([2.0, 3.0, 7.0]))
    _, n_in, n_out = draw_requests(w, 5, seed=0)
    assert n_in.tolist() == [1, 2, 3, 1, 2]
    assert n_out.tolist() == [4, 5, 6, 4, 5]
    for bad in ([1.0], [2.0, 1.0], [1.0, 1.0], [0.0, math.nan]):
        with pytest.raises(InputError, match="arrivals"):
            trace_arrivals(5, np.array(bad))


def test_one_seed_gives_independent_streams():
    a, b = (g.random(3) for g in streams(7))
    assert not np.array_equal(a, b)
    first, again = draw_requests(CHAT, 100, seed=7), draw_requests(CHAT, 100, seed=7)
    assert all(np.array_equal(x, y) for x, y in zip(first, again, strict=True))
    bursty = draw_requests(dataclasses.replace(CHAT, arrival_scv=4.0), 100, seed=7)
    assert np.array_equal(first[1], bursty[1])
    assert not np.array_equal(first[0], draw_requests(CHAT, 100, seed=8)[0])


def test_window_and_gaps_of_a_window():
    records = simulate(SYSTEM, CHAT, 10, requests=200, seed=0, record_gaps=True)
    kept = records.window(warmup=0.1, tail=0.05)
    assert len(records) == 200
    assert kept.id.tolist() == list(range(20, 190))
    np.testing.assert_array_equal(kept.gaps.of(3), records.gaps.of(23))
    assert len(kept.gaps.values) == (kept.n_out - 1).sum()
    with pytest.raises(InputError, match="window"):
        records.window(warmup=0.6, tail=0.5)


def test_attainment_allows_for_rounding_only():
    system = make_system(LinearTimes(fixed=0.1), LinearTimes(fixed=0.1))
    records = run(system, np.arange(1, 101) * 10.0, np.ones(100), np.full(100, 11))
    assert records.tpot == pytest.approx(0.1)
    assert attainment(records, Slo(ttft=0.1, tpot=0.1, attainment=0.9)) == 1.0
    assert attainment(records, Slo(ttft=0.1, tpot=0.1 - 1e-7, attainment=0.9)) == 0.0
    assert attainment(records, Slo(ttft=0.1 - 1e-7, tpot=0.1, attainment=0.9)) == 0.0


def test_summary():
    records = simulate(SYSTEM, CHAT, 10, requests=3000, seed=3)
    kept = records.window()
    slo = Slo(ttft=float(np.quantile(kept.ttft, 0.9)), tpot=INF, attainment=0.9)
    s = summarise(records, slo)
    assert s.requests == len(kept) == 2550
    assert s.ttft.mean == pytest.approx(kept.ttft.mean())
    assert s.ttft.p50 <= s.ttft.p90 <= s.ttft.p99
    several = kept.tpot[kept.n_out > 1]
    assert 0 < len(several) < len(kept)
    assert s.tpot.p99 == pytest.approx(np.quantile(several, 0.99))
    assert s.tpot.mean == pytest.approx(several.mean())
    assert s.attainment.value == pytest.approx(0.9, abs=1e-3)
    assert s.attainment.low < 0.9 < s.attainment.high
    assert s.throughput == pytest.approx(10, rel=0.02)
    with pytest.raises(InputError, match="batches"):
        summarise(records.select(0, 10), slo)


def test_without_second_tokens_there_is_no_tpot():
    records = simulate(SYSTEM, workload([10], [1]), 10, requests=100, seed=0)
    s = summarise(records, Slo(ttft=INF, tpot=0.001, attainment=0.9))
    assert math.isnan(s.tpot.mean)
    assert math.isnan(s.tpot.p90)
    assert s.attainment.value == 1.0


def test_interval_covers_at_its_level():
    rng = np.random.default_rng(5)
    hits = [e.low <= 0 <= e.high for e in (estimate(rng.normal(size=5)) for _ in range(4000))]
    assert abs(np.mean(hits) - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 4000)
    single = estimate(np.array([3.0]))
    assert (single.value, single.se, single.low) == (3.0, INF, -INF)


def test_overload_ends_and_serves_at_capacity():
    records = simulate(SYSTEM, CHAT, 1000, requests=2000, seed=0)
    n_in = records.n_in.mean()
    capacity = 1 / (0.01 + 0.0005 * n_in)
    done = np.sort(records.first_token)
    assert (len(done) - 1) / (done[-1] - done[0]) == pytest.approx(capacity, rel=0.01)
    assert attainment(records.window(), Slo(ttft=1.0, tpot=1.0, attainment=0.9)) < 0.1


def md1_cdf(t, rho):
    """Erlang's formula; see the theory tests."""
    terms = ((rho * (k - t)) ** k / math.factorial(k) for k in range(int(t) + 1))
    return (1 - rho) * sum(x * math.exp(-rho * (k - t)) for k, x in enumerate(terms))


def test_goodput_of_md1():
    """The rate at which P(W <= 3) is 0.9 for service 1."""
    exact = brentq(lambda rho: md1_cdf(3.0, rho) - 0.9, 0.1, 0.95)
    system = make_system(LinearTimes(fixed=1.0))
    slo = Slo(ttft=4.0, tpot=1.0, attainment=0.9)
    g = goodput(system, workload([1], [1]), slo, guess=0.6, requests=4000, seeds=(0, 1, 2, 3, 4))
    assert 0 < g.se < 0.03 * exact
    assert abs(g.value - exact) < 4 * g.se
    assert g.low < g.value < g.high
    assert g.probes <= 36
    # The comparison can fail: a target of 0.8 has another root.
    other = brentq(lambda rho: md1_cdf(3.0, rho) - 0.8, 0.1, 0.95)
    assert abs(g.value - other) > 4 * g.se


def test_goodput_is_zero_when_an_idle_system_is_too_slow():
    slo = Slo(ttft=1.0, tpot=0.0104, attainment=0.9)  # a lone step takes 0.0105
    g = goodput(SYSTEM, CHAT, slo, guess=5.0, requests=500)
    assert (g.value, g.low, g.high, g.se, g.probes) == (0.0, 0.0, 0.0, 0.0, 1)


def test_goodput_from_a_bad_guess_and_of_one_seed():
    slo = Slo(ttft=3.0, tpot=1.0, attainment=0.8)
    system = make_system(LinearTimes(fixed=1.0))

    def found(guess):
        return goodput(system, workload([1], [1]), slo, guess=guess, requests=1000, seeds=(1,))

    near = found(0.6)
    assert math.isinf(near.se)
    assert (near.low, near.high) == (0.0, INF)
    for guess in (1e-4, 50, math.nan):
        assert found(guess).value == pytest.approx(near.value, rel=0.006)


def test_goodput_refuses_runs_that_cannot_overload():
    slo = Slo(ttft=100.0, tpot=100.0, attainment=0.5)
    with pytest.raises(InputError, match="too short"):
        goodput(SYSTEM, CHAT, slo, guess=10.0, requests=100, seeds=(1,))
    with pytest.raises(InputError, match="seeds"):
        goodput(SYSTEM, CHAT, slo, guess=10.0, requests=100, seeds=())


@pytest.mark.parametrize(
    ("arrival", "n_in", "n_out", "message"),
    [
        ([1.0, 0.5], [1, 1], [1, 1], "sorted"),
        ([-1.0, 0.5], [1, 1], [1, 1], "not negative"),
        ([0.0, math.nan], [1, 1], [1, 1], "finite"),
        ([0.0, 1.0], [1], [1, 1], "one length"),
        ([], [], [], "non-empty"),
        ([0.0], [0], [1], "n_in"),
        ([0.0], [1], [1.5], "n_out"),
        ([0.0], [31], [1], r"prefill.kv_capacity = 30"),
        ([0.0], [25], [16], r"decode.kv_capacity = 40"),
    ],
)
def test_bad_requests_are_refused(arrival, n_in, n_out, message):
    one = LinearTimes(fixed=1.0)
    system = make_system(
        one,
        prefill=make_instance(one, kv_capacity=30.0),
        decode=make_instance(one, kv_capacity=40.0),
    )
    with pytest.raises(InputError, match=message):
        run(system, np.array(arrival), np.array(n_in), np.array(n_out))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_prefill": 0}, "n_prefill"),
        ({"n_decode": 1.5}, "n_decode"),
        ({"max_batch": 0}, "max_batch"),
        ({"link_bandwidth": 0.0}, "link_bandwidth"),
        ({"prefill_batch": 0}, "prefill_batch"),
        ({"max_batch": np.ones(3)}, "batch of them"),
    ],
)
def test_bad_systems_are_refused(change, message):
    system = dataclasses.replace(SYSTEM, **change)
    with pytest.raises(InputError, match=message):
        run(system, np.zeros(1), np.ones(1), np.ones(1))


def test_bad_streams_are_refused():
    with pytest.raises(InputError, match="rate"):
        simulate(SYSTEM, CHAT, 0, requests=10, seed=0)
    with pytest.raises(InputError, match="requests"):
        simulate(SYSTEM, CHAT, 1, requests=0, seed=0)
    with pytest.raises(InputError, match="arrival_scv"):
        gamma_arrivals(10, np.random.default_rng(0), scv=-1)
