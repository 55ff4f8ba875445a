"""What must hold in every run, checked from the records alone."""

import dataclasses

import numpy as np
import pytest
from eventsim_helpers import INF, LinearTimes, make_instance, make_system
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidserve.eventsim import run
from fluidserve.timing.kv import KvShape
from fluidserve.timing.model import decode_work

STEP = LinearTimes(fixed=0.3, per_new=0.1, per_pair=0.001)
PREFILL = LinearTimes(fixed=0.2, per_new=0.02, per_pair=0.0005)
MODES = ("prefill", "decode")
RULES = ("shared", "jsq", "round-robin", "random")
SHAPES = (
    None,
    KvShape(held=0.25, read=0.25, pairs=0.5, window=9.0, state=0.0),
    KvShape(held=1.0, read=0.1, pairs=0.2, window=5.0, state=1.5),
)


@st.composite
def cases(draw):
    """A small system under load, often short of memory, slots or bandwidth, and its requests."""
    n = draw(st.integers(1, 25))
    numbers = st.integers(1, 30)
    n_in = np.array(draw(st.lists(numbers, min_size=n, max_size=n)))
    n_out = np.array(draw(st.lists(st.integers(1, 12), min_size=n, max_size=n)))
    kv = draw(st.sampled_from(SHAPES))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.1, 0.37, 2.5]), min_size=n, max_size=n))
    system = make_system(
        PREFILL,
        prefill=make_instance(
            PREFILL,
            pp=draw(st.integers(1, 3)),
            kv_capacity=draw(st.sampled_from([32.0, 75.0, INF])),
            kv=kv,
        ),
        decode=make_instance(
            STEP,
            pp=draw(st.integers(1, 3)),
            kv_capacity=draw(st.sampled_from([44.0, 100.0, INF])),
            kv=kv,
        ),
        kv=kv,
        n_prefill=draw(st.integers(1, 3)),
        n_decode=draw(st.integers(1, 3)),
        link_bandwidth=draw(st.sampled_from([10.0, 100.0, INF])),
        handover_overhead=draw(st.sampled_from([0.0, 0.15])),
        max_batch=draw(st.sampled_from([1, 3, INF])),
        prefill_batch=draw(st.integers(1, 3)),
        prefill_tokens=draw(st.sampled_from([None, 12.0, 40.0])),
        first_token=draw(st.sampled_from(MODES)),
        dispatch=draw(st.sampled_from(RULES)),
    )
    return system, np.cumsum(gaps), n_in, n_out


def held(kv, tokens):
    """What a request of so many tokens holds."""
    tokens = np.asarray(tokens, float)
    if kv is None:
        return tokens
    return kv.held * tokens + (1 - kv.held) * np.minimum(tokens, kv.window) + kv.state


def attended(kv, context):
    """What one new token attends of a context."""
    if kv is None:
        return context
    return kv.pairs * context + (1 - kv.pairs) * min(context, kv.window)


def prompt_pairs(kv, tokens):
    """Pairs of a causal prompt, added up over its tokens as a trapezoid."""
    at = [attended(kv, t) for t in range(tokens + 1)]
    return sum(at) - 0.5 * at[-1]


def peak(start, end, amount):
    """Largest sum of amounts held at one time; what ends at a time makes room at that time."""
    times, change = np.concatenate([start, end]), np.concatenate([amount, -amount])
    return np.cumsum(change[np.lexsort((change, times))]).max(initial=0)


def lines(system, r):
    """Which requests share a prefill queue."""
    if system.dispatch == "shared":
        return [np.ones(len(r), bool)]
    return [r.prefill_instance == g for g in range(int(system.n_prefill))]


def check_order(system, r):
    assert (r.arrival <= r.prefill_start).all()
    assert (r.prefill_start < r.prefill_end).all()
    assert (r.prefill_end <= r.kv_start).all()
    assert (r.kv_start <= r.kv_end).all()
    assert (r.kv_end <= r.decode_start).all()
    handed = r.decode_instance >= 0
    assert (r.decode_start < r.last_token)[handed].all()
    assert (r.first_token <= r.last_token).all()
    for line in lines(system, r):
        assert (np.diff(r.prefill_start[line]) >= 0).all()  # FCFS
    if system.first_token == "prefill":
        assert (r.first_token == r.prefill_end).all()
        assert (handed == (r.n_out > 1)).all()
    else:
        assert (r.first_token > r.decode_start).all()
        assert handed.all()


def check_prefill(system, r):
    """Rebuilds every batch and its way through the stages."""
    for g in range(int(system.n_prefill)):
        free = np.zeros(int(system.prefill.pp))
        for start in np.unique(r.prefill_start[r.prefill_instance == g]):
            batch = np.flatnonzero((r.prefill_instance == g) & (r.prefill_start == start))
            assert len(batch) <= system.prefill_batch
            tokens = system.prefill_tokens or INF
            assert len(batch) == 1 or r.n_in[batch].sum() <= tokens
            queue = np.flatnonzero(lines(system, r)[0 if system.dispatch == "shared" else g])
            assert (np.diff(np.searchsorted(queue, batch)) == 1).all()  # neighbours in it
            assert start >= free[0] - 1e-9
            n_in = r.n_in[batch]
            end = start
            for s in range(len(free)):
                pairs = sum(prompt_pairs(system.prefill.kv, n) for n in n_in.tolist())
                busy = 0.2 + 0.02 * n_in.sum() + 0.0005 * pairs
                end = free[s] = max(end, free[s]) + busy
            np.testing.assert_allclose(r.prefill_end[batch], end, rtol=1e-12)


def check_prefill_dispatch(system, r):
    """Prompts went to the instance with fewest, the lowest index among equals, or in turn."""
    n = int(system.n_prefill)
    for i in range(len(r)):
        if system.dispatch == "round-robin":
            assert r.prefill_instance[i] == i % n
        elif system.dispatch == "jsq":
            there = r.prefill_instance[:i][r.prefill_end[:i] > r.arrival[i]]
            assert r.prefill_instance[i] == np.bincount(there, minlength=n).argmin()


def check_decode_dispatch(system, r):
    """Each request went to the instance with fewest, the lowest index among equals, or in turn."""
    handed = np.flatnonzero(r.decode_instance >= 0)
    order = handed[np.lexsort((handed, r.prefill_instance[handed], r.prefill_end[handed]))]
    for k, i in enumerate(order):
        if system.dispatch == "random":
            continue
        if system.dispatch == "round-robin":
            assert r.decode_instance[i] == k % system.n_decode
            continue
        there = order[:k][r.last_token[order[:k]] >= r.prefill_end[i]]
        load = np.bincount(r.decode_instance[there], minlength=int(system.n_decode))
        assert r.decode_instance[i] == load.argmin()


def check_room(system, r):
    for g in range(int(system.n_prefill)):
        mine = r.prefill_instance == g
        need = held(system.prefill.kv, r.n_in[mine])
        most = peak(r.prefill_start[mine], r.kv_end[mine], need)
        assert most <= system.prefill.kv_capacity + 1e-9
    for g in range(int(system.n_decode)):
        mine = r.decode_instance == g
        start, end = r.kv_start[mine], r.last_token[mine]
        need = held(system.decode.kv, (r.n_in + r.n_out)[mine])
        assert peak(start, end, need) <= system.decode.kv_capacity + 1e-9
        assert peak(start, end, np.ones(mine.sum())) <= system.max_batch
        order = np.lexsort((start, r.prefill_end[mine]))  # ties in either order
        assert (np.diff(start[order]) >= 0).all()  # FCFS


def check_link(system, r):
    handed = np.flatnonzero(r.decode_instance >= 0)
    service = (held(system.kv, r.n_in) * system.kv_bytes_per_token / system.link_bandwidth)[handed]
    end = r.kv_end[handed] - system.handover_overhead
    order = np.lexsort((end, r.kv_start[handed]))
    begin, end = (end - service)[order], end[order]
    assert (begin >= r.kv_start[handed][order] - 1e-9).all()
    assert (begin[1:] >= end[:-1] - 1e-9).all()
    expected = np.maximum(r.kv_start[handed][order], np.concatenate([[0], end[:-1]]))
    np.testing.assert_allclose(begin, expected, atol=1e-9)


def check_gaps(r):
    assert (np.diff(r.gaps.offsets) == r.n_out - 1).all()
    assert (r.gaps.values > 0).all()
    for i in range(len(r)):
        total = r.last_token[i] - r.first_token[i]
        assert r.gaps.of(i).sum() == pytest.approx(total, abs=1e-9)


def check_iterations(system, r):
    """Rebuilds every iteration of an instance with one stage out of the token times."""
    before = system.first_token == "prefill"
    for g in range(int(system.n_decode)):
        iterations = {}
        for i in np.flatnonzero(r.decode_instance == g).tolist():
            tokens = r.first_token[i] + np.concatenate([[0], np.cumsum(r.gaps.of(i))])
            for k, end in enumerate(tokens[before:]):
                iterations.setdefault(round(end, 7), []).append((i, k))
        previous = 0.0
        for end in sorted(iterations):
            members = iterations[end]
            context = sum(attended(system.decode.kv, r.n_in[i] + before + k) for i, k in members)
            begin = end - STEP.stage_time(decode_work(len(members), context))
            fresh = [i for i, k in members if k == 0]
            np.testing.assert_allclose(r.decode_start[fresh], begin, atol=1e-5)
            assert begin >= previous - 1e-5
            if len(fresh) < len(members):  # someone goes on, so there is no pause
                assert begin == pytest.approx(previous, abs=1e-5)
            elif begin > previous + 1e-5:  # after a pause nobody had waited
                assert begin == pytest.approx(r.kv_end[fresh].min(), abs=1e-5)
            waiting = r.kv_end[fresh] <= begin + 1e-5
            assert waiting.all()
            previous = end


@settings(max_examples=150, deadline=None, derandomize=True)
@given(cases())
def test_invariants(case):
    system, arrival, n_in, n_out = case
    r = run(system, arrival, n_in, n_out, record_gaps=True)
    assert (r.n_in == n_in).all()
    assert (r.n_out == n_out).all()
    check_order(system, r)
    check_prefill(system, r)
    check_prefill_dispatch(system, r)
    check_decode_dispatch(system, r)
    check_room(system, r)
    check_link(system, r)
    check_gaps(r)
    if system.decode.pp == 1:
        check_iterations(system, r)
    if system.prefill.kv_capacity == INF:
        assert (r.memory_stall == 0).all()
    shares = dataclasses.asdict(r.utilisation)
    for name in ("prefill", "link", "decode", "prefill_kv", "decode_kv"):
        assert 0 <= shares[name] <= 1 + 1e-9, name


@settings(max_examples=30, deadline=None, derandomize=True)
@given(cases())
def test_endless_bandwidth_is_no_link_at_all(case):
    system, *requests = case
    endless = dataclasses.replace(system, link_bandwidth=INF)
    absent = dataclasses.replace(system, kv_bytes_per_token=0.0, link_bandwidth=1.0)
    a, b = run(endless, *requests), run(absent, *requests)
    assert same(a, b)
    assert (a.kv_end == a.kv_start + (a.decode_instance >= 0) * system.handover_overhead).all()


def same(a, b):
    names = [f.name for f in dataclasses.fields(a) if f.name not in ("utilisation", "gaps")]
    return all(np.array_equal(getattr(a, x), getattr(b, x)) for x in names)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(cases())
def test_runs_repeat_and_recording_changes_nothing(case):
    system, *requests = case
    assert same(run(system, *requests), run(system, *requests, record_gaps=True))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(cases())
def test_prefill_does_not_depend_on_where_the_first_token_leaves(case):
    """As long as nothing holds it back from behind."""
    system, *requests = case
    free = dataclasses.replace(system, prefill=dataclasses.replace(system.prefill, kv_capacity=INF))
    a, b = (run(dataclasses.replace(free, first_token=m), *requests) for m in MODES)
    np.testing.assert_array_equal(a.prefill_end, b.prefill_end)


def test_more_of_everything_never_hurts_a_single_lane():
    rng = np.random.default_rng(31)
    requests = (np.cumsum(rng.exponential(0.5, 300)), rng.integers(1, 30, 300), np.full(300, 8))
    tight = make_system(
        PREFILL,
        prefill=make_instance(PREFILL, kv_capacity=60.0),
        decode=make_instance(LinearTimes(fixed=0.3), kv_capacity=100.0),
        link_bandwidth=50.0,
    )
    last = run(tight, *requests).last_token
    roomy = dataclasses.replace(tight.decode, kv_capacity=200.0)
    for change in (
        {"prefill": dataclasses.replace(tight.prefill, kv_capacity=INF)},
        {"decode": roomy},
        {"link_bandwidth": INF},
        {"n_prefill": 2},
    ):
        faster = run(dataclasses.replace(tight, **change), *requests).last_token
        assert faster.mean() <= last.mean(), change
