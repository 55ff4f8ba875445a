"""What must hold in every run of instances that do both phases, from its iterations."""

import dataclasses
import itertools
from collections import defaultdict

import numpy as np
import pytest
from eventsim_helpers import INF, LinearTimes, make_aggregated
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidserve.eventsim import aggregated, run
from fluidserve.eventsim.runs import checked_log
from fluidserve.eventsim.sources import Stream, Users
from fluidserve.eventsim.static import StaticBatching
from fluidserve.timing.kv import KvShape

TIMES = LinearTimes(fixed=0.3, per_new=0.02, per_pair=0.001)
SHAPES = (None, KvShape(held=0.3, read=0.3, pairs=0.5, window=9.0, state=1.5))


@st.composite
def cases(draw):
    """Instances under load, often short of places or memory, and who sends them what."""
    n = draw(st.integers(1, 25))
    n_in = np.array(draw(st.lists(st.integers(1, 30), min_size=n, max_size=n)))
    n_out = np.array(draw(st.lists(st.integers(1, 12), min_size=n, max_size=n)))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.1, 0.37, 2.5]), min_size=n, max_size=n))
    system = make_aggregated(
        TIMES,
        pp=draw(st.integers(1, 3)),
        kv_capacity=draw(st.sampled_from([44.0, 60.0, 100.0, INF])),
        kv=draw(st.sampled_from(SHAPES)),
        replicas=draw(st.integers(1, 3)),
        max_batch=draw(st.sampled_from([1, 3, INF])),
        prefill_tokens=draw(st.sampled_from([12.0, 40.0])),
        token_budget=draw(st.sampled_from([None, 1.0, 4.0, 17.0, 64.0])),
        dispatch=draw(st.sampled_from(["shared", "jsq", "round-robin", "random"])),
        kv_policy=draw(st.sampled_from(["reserve", "preempt"])),
        prefix_hit=draw(st.sampled_from([None, 0.3])),
    )
    scheduler = draw(st.sampled_from([None, None, None, StaticBatching]))
    return system, np.cumsum(gaps), n_in, n_out, draw(st.sampled_from([0, 0, 3])), scheduler


def traced(system, arrival, n_in, n_out, users, scheduler):
    """A run and its iterations; with users, they set the times of arrival."""
    log, trace = checked_log(arrival, n_in, n_out), []
    source = Users(log, np.zeros(users)) if users else Stream(log)
    r = aggregated.serve(
        system, log, source, record_gaps=True, seed=3, scheduler=scheduler, trace=trace
    )
    return r, trace


def check_records(r):
    marks = (r.arrival, r.prefill_start, r.prefill_end, r.decode_start, r.first_step, r.last_token)
    for earlier, later in itertools.pairwise(marks):
        assert (earlier <= later + 1e-9).all()
    assert (r.prefill_start < r.prefill_end).all()
    for same in (r.first_token, r.kv_start, r.kv_end):
        np.testing.assert_array_equal(same, r.prefill_end)
    assert ((r.n_out > 1) == (r.first_step > r.first_token)).all()
    assert (r.memory_stall <= r.last_token - r.arrival + 1e-9).all()
    for i in range(len(r)):
        gaps = r.gaps.of(i)
        assert len(gaps) == r.n_out[i] - 1
        assert (gaps > 0).all()
        assert gaps.sum() == pytest.approx(r.last_token[i] - r.first_token[i])
        if len(gaps):
            assert gaps[0] == pytest.approx(r.first_step[i] - r.first_token[i])


def check_order(system, r, trace):
    """Prefills begin in the order of arrival, and lanes and stages do one thing at a time."""
    lanes, instances = defaultdict(list), defaultdict(list)
    for it in trace:
        lanes[it.lane].append(it)
        instances[it.lane // int(system.instance.pp)].append(it)
    for its in lanes.values():
        assert all(a.end <= b.begin + 1e-9 for a, b in itertools.pairwise(its))
    for g, its in instances.items():
        assert (np.diff(r.prefill_start[r.prefill_instance == g]) >= 0).all()
        assert all(a.begin < b.begin for a, b in itertools.pairwise(its))
        assert all(a.end < b.end for a, b in itertools.pairwise(its))


def check_tokens(system, r, trace):
    """Every token is made once, and a prefill computes all that the cache does not hold."""
    hit = system.prefix_hit
    cached = np.zeros(len(r)) if hit is None else np.minimum(hit * r.n_in, r.n_in - 1)
    prefills = np.zeros(len(r), int)
    there = cached.copy()
    for piece in (p for it in trace for p in it.pieces):
        i = piece.request
        assert piece.new > 0
        if piece.before == pytest.approx(cached[i]):
            prefills[i] += 1
        else:
            assert piece.before == pytest.approx(there[i])
        there[i] = piece.before + piece.new
    assert (prefills == 1 + r.preempted).all()
    anew = r.preempted > 0
    np.testing.assert_allclose(there[~anew], r.n_in[~anew])
    np.testing.assert_allclose(there[anew], np.rint(there[anew]))
    assert ((r.n_in <= there + 1e-6) & (there < r.n_in + r.n_out)).all()
    decoded = sum(it.decoding for it in trace)
    if system.token_budget is None:  # where no prefill can be broken off
        assert decoded + prefills.sum() == r.n_out.sum()
    assert r.n_out.sum() - prefills.sum() <= decoded <= r.n_out.sum() - len(r)


def check_limits(system, trace):
    for it in trace:
        assert it.requests <= system.max_batch
        assert it.kv <= system.instance.kv_capacity + 1e-9
        assert it.decoding or it.pieces


def check_contents(system, trace):
    """What an iteration may hold, and how long it takes that."""
    for it in trace:
        new = sum(p.new for p in it.pieces)
        requests = [p.request for p in it.pieces]
        assert requests == sorted(set(requests))
        if system.token_budget is None:
            assert not (it.decoding and it.pieces)
            assert len(it.pieces) <= 1 or new <= system.prefill_tokens
        else:
            assert it.decoding + new <= system.token_budget + 1e-6
        if system.instance.kv is None:
            pairs = it.context + sum(p.new * (p.before + p.new / 2) for p in it.pieces)
            stage = 0.3 + 0.02 * (it.decoding + new) + 0.001 * pairs
            passed = (it.end - it.begin) / system.instance.pp
            assert passed == pytest.approx(stage) or (system.instance.pp > 1 and passed > stage)


@settings(max_examples=250, deadline=None, derandomize=True)
@given(cases())
def test_invariants(case):
    system, *requests, users, scheduler = case
    r, trace = traced(system, *requests, users, scheduler)
    check_records(r)
    check_order(system, r, trace)
    check_limits(system, trace)
    if scheduler is None:
        check_tokens(system, r, trace)
        check_contents(system, trace)
    if scheduler is not None or system.kv_policy == "reserve":
        assert (r.preempted == 0).all()
    shares = dataclasses.asdict(r.utilisation)
    for name in ("prefill", "decode", "decode_kv"):
        assert 0 <= shares[name] <= 1 + 1e-9, name
    assert shares["prefill"] + shares["decode"] <= 1 + 1e-9


@settings(max_examples=30, deadline=None, derandomize=True)
@given(cases())
def test_runs_repeat_and_looking_on_changes_nothing(case):
    system, arrival, n_in, n_out, _, _ = case
    r, _ = traced(system, arrival, n_in, n_out, 0, None)
    again = run(system, arrival, n_in, n_out, seed=3)
    for f in dataclasses.fields(r):
        if f.name not in ("utilisation", "gaps"):
            np.testing.assert_array_equal(getattr(r, f.name), getattr(again, f.name))
    assert r.utilisation == again.utilisation


def test_cases_lose_memory():
    """On two lanes too, where each gives way by itself."""
    rng = np.random.default_rng(5)
    requests = (np.arange(80) * 0.5, rng.integers(1, 20, 80), rng.integers(1, 20, 80), 0, None)
    for pp in (1, 2):
        system = make_aggregated(TIMES, pp=pp, kv_capacity=60.0, kv_policy="preempt")
        r, trace = traced(system, *requests)
        check_tokens(system, r, trace)
        check_limits(system, trace)
        assert r.preempted.max() > 1
