"""A deployment at a rate: limits that leave no trace, monotony, joint attainment, what binds."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest
from analysis_helpers import inputs_of, jitted_prepare, make_problem, plan_of, quick_jit
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidserve.deploy.binding import binding_of
from fluidserve.deploy.disaggregated import (
    at_rate,
    evaluate,
    largest_rate,
    tpot_met,
    ttft_within,
)
from fluidserve.specs.applications import synthetic_workload
from fluidserve.specs.lengths import length_bins
from fluidserve.specs.workload import JointLengths, Workload
from fluidserve.status import Binding
from fluidserve.testing import assert_no_nan

_evaluate, _limits = quick_jit(evaluate), quick_jit(largest_rate)

LABEL = "2P2D tp1/tp1"
MODES = ("prefill", "decode")


def metrics(problem, label, rate):
    slo = inputs_of(problem, label)[2]
    return _evaluate(plan_of(problem, label), slo, jnp.array(float(rate)))


def upper(problem, label):
    return min(float(x) for x in _limits(plan_of(problem, label)))


def as_floats(tree):
    return {name: float(value) for name, value in vars(tree).items() if value is not None}


def _binding(goodput, found, limits):
    slo, plan = inputs_of(_chat(), LABEL)[2], plan_of(_chat(), LABEL)
    return Binding(int(binding_of(jnp.array(goodput), found, limits, plan, slo)))


@pytest.mark.parametrize("mode", MODES)
def test_an_infinite_link_is_no_link(mode):
    """All that the link adds vanishes exactly; a finite one only takes away."""
    free = make_problem(first_token=mode, link=float("inf"))
    plan = plan_of(free, LABEL)
    state = quick_jit(at_rate)(plan, jnp.array(8.0))
    assert float(state.handover) == 0.0
    assert float(state.link.load) == 0.0
    without = metrics(free, LABEL, 8.0)
    one_byte = dataclasses.replace(plan.system, kv_bytes_per_token=jnp.array(1e-30))
    nothing_to_move = _evaluate(
        dataclasses.replace(plan, system=one_byte), inputs_of(free, LABEL)[2], jnp.array(8.0)
    )
    assert as_floats(without) == as_floats(nothing_to_move)
    shares = [
        float(metrics(make_problem(first_token=mode, link=b), LABEL, 8.0).attainment)
        for b in (5e9, 2e10, 1e11, 1e13, float("inf"))
    ]
    assert shares == sorted(shares)
    assert shares[-1] - shares[-2] < 1e-3
    assert shares[0] < shares[-1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("label", ["1P1D tp1/tp1", LABEL, "3P1D tp1pp2/tp2"])
def test_attainment_falls_with_the_rate(mode, label):
    problem = make_problem(first_token=mode, link=25e9, ttft=0.5)
    top = upper(problem, label)
    shares = [float(metrics(problem, label, f * top).attainment) for f in np.linspace(0, 1.2, 49)]
    assert shares[0] > 0.9
    assert (np.diff(shares) <= 2e-3).all()
    assert shares[-1] == 0.0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("link", [1.0, 1e9, float("inf")])
@pytest.mark.parametrize("factor", [1.000001, 1.5, 1e6])
def test_overload_meets_nothing_and_is_no_nan(mode, link, factor):
    problem = make_problem(first_token=mode, link=link)
    found = metrics(problem, LABEL, factor * max(upper(problem, LABEL), 1e-3))
    assert float(found.attainment) == 0.0
    assert_no_nan(found)


def test_idle_system_meets_what_it_can():
    """Without traffic TTFT is the prompt's own time and TPOT one step of one request."""
    problem = make_problem(ttft=1.0, tpot=0.03)
    found = metrics(problem, LABEL, 0.0)
    assert float(found.attainment) == pytest.approx(1.0, abs=1e-6)
    assert float(found.batch) == 0.0
    tight = metrics(make_problem(ttft=1.0, tpot=0.016), LABEL, 1e-6)
    assert float(tight.attainment) < 1e-3


def test_joint_attainment_follows_the_joint_lengths():
    """Long prompts miss TTFT and short outputs, which carry the hand-over, mostly miss TPOT.

    Where these are the same requests, half meet both; where they are not, hardly any does. The
    shares by themselves are about a half either way.
    """
    n_in, n_out = np.array([100, 1800]), np.array([400, 10])

    def found(n_out):
        lengths = JointLengths(n_in=np.tile(n_in, 50), n_out=np.tile(n_out, 50))
        workload = Workload(name="two kinds", lengths=lengths)
        problem = make_problem(workload=workload, ttft=0.2, tpot=0.02, link=14e9)
        return metrics(problem, LABEL, 0.2)

    same, other = found(n_out), found(n_out[::-1])
    for each in (same, other):
        assert float(each.ttft_attainment) == pytest.approx(0.5, abs=0.05)
        assert 0.5 < float(each.tpot_attainment) < 0.65
    assert float(same.attainment) == pytest.approx(0.5, abs=0.02)
    assert float(other.attainment) < 0.15


def test_joint_is_the_weighted_sum_over_pairs_of_bins():
    problem = make_problem(link=25e9)
    plan, slo = plan_of(problem, LABEL), inputs_of(problem, LABEL)[2]
    rate = jnp.array(8.0)

    @quick_jit
    def shares(plan, slo, rate):
        state = at_rate(plan, rate)
        return ttft_within(plan, state, slo.ttft), tpot_met(plan, state, slo.tpot)

    ttft, tpot = shares(plan, slo, rate)
    bins = plan.bins
    expected = sum(
        float(bins.joint[q, m] * ttft[q] * tpot[m])
        for q in range(len(ttft))
        for m in range(len(tpot))
    )
    found = metrics(problem, LABEL, 8.0)
    assert float(found.attainment) == pytest.approx(expected, rel=1e-9)


def test_single_tokens_never_reach_the_link_when_prefill_sends_them():
    ones = make_problem(workload=synthetic_workload(512, 1), link=1e9)
    for_prefill = metrics(ones, LABEL, 1.0)
    assert float(for_prefill.link_load) == 0.0
    later = make_problem(workload=synthetic_workload(512, 1), link=1e9, first_token="decode")
    assert float(metrics(later, LABEL, 1.0).link_load) > 0.3


def test_handover_counts_where_the_first_token_leaves():
    slow = {"link": 8e9, "ttft": 0.4}
    by_prefill = metrics(make_problem(first_token="prefill", **slow), LABEL, 2.0)
    by_decode = metrics(make_problem(first_token="decode", **slow), LABEL, 2.0)
    assert float(by_decode.ttft_attainment) < float(by_prefill.ttft_attainment)
    assert float(by_decode.tpot_attainment) >= float(by_prefill.tpot_attainment)


def test_largest_rates_by_hand():
    problem = make_problem(link=25e9)
    plan = plan_of(problem, LABEL)
    prefill, link, decode = (float(x) for x in _limits(plan))
    bins = length_bins(problem.workload.lengths)
    prompt = bins.in_share @ bins.in_mean
    assert prefill == pytest.approx(2 / float(plan.prefill.mean))
    moved = prompt * problem.model.kv_bytes_per_token
    assert link == pytest.approx(25e9 / moved, rel=1e-6)
    for rate, load in ((prefill, "prefill_load"), (link, "link_load")):
        found = metrics(problem, LABEL, rate)
        assert float(getattr(found, load)) == pytest.approx(1.0, abs=1e-6)
    # above this the slots cannot carry the load; transfers in progress take a few of them
    assert float(metrics(problem, LABEL, decode).decode_load) == pytest.approx(1.0, abs=0.15)


def test_utilisation_is_proportional_to_the_rate():
    problem = make_problem(link=25e9)
    one, two = metrics(problem, LABEL, 2.0), metrics(problem, LABEL, 4.0)
    for name in ("prefill_load", "link_load"):
        assert float(getattr(two, name)) == pytest.approx(2 * float(getattr(one, name)))
    assert float(two.batch) > 2 * float(one.batch)


@settings(deadline=None, max_examples=40)
@given(
    ttft=st.floats(1e-3, 10.0),
    tpot=st.floats(1e-3, 1.0),
    factor=st.floats(1.0, 3.0),
    load=st.floats(0.01, 0.99),
)
def test_looser_limits_lose_nobody(ttft, tpot, factor, load):
    rate = load * upper(_chat(), LABEL)
    slo = inputs_of(_chat(), LABEL)[2]
    plan = plan_of(_chat(), LABEL)

    def at(t, p):
        limits = dataclasses.replace(slo, ttft=jnp.array(t), tpot=jnp.array(p))
        return float(_evaluate(plan, limits, jnp.array(rate)).attainment)

    assert 0 <= at(ttft, tpot) <= 1
    assert at(factor * ttft, tpot) >= at(ttft, tpot) - 1e-6
    assert at(ttft, factor * tpot) >= at(ttft, tpot) - 1e-6


@functools.cache
def _chat():
    return make_problem(link=25e9)


def test_scales_with_the_unit_of_time():
    """Twice as slow in everything, half the rate: the same shares."""
    problem = _chat()
    system, bins, slo, scv = inputs_of(problem, LABEL)

    def slower(times):
        skip = {"token_offset", "expert_miss"}
        changed = {
            f.name: 2 * getattr(times, f.name)
            for f in dataclasses.fields(times)
            if f.name not in skip
        }
        return dataclasses.replace(times, **changed)

    instances = {
        role: dataclasses.replace(getattr(system, role), times=slower(getattr(system, role).times))
        for role in ("prefill", "decode")
    }
    half = dataclasses.replace(system, link_bandwidth=system.link_bandwidth / 2, **instances)
    limits = dataclasses.replace(slo, ttft=2 * slo.ttft, tpot=2 * slo.tpot)
    one = _evaluate(jitted_prepare(system, bins, scv), slo, jnp.array(8.0))
    other = _evaluate(jitted_prepare(half, bins, scv), limits, jnp.array(4.0))
    for name, value in as_floats(one).items():
        assert as_floats(other)[name] == pytest.approx(value, rel=1e-6, abs=1e-9), name


@pytest.mark.parametrize(
    ("changes", "goodput", "expected"),
    [
        ({"ttft_attainment": 0.85, "tpot_attainment": 0.99}, 5.0, Binding.TTFT),
        ({"ttft_attainment": 0.99, "tpot_attainment": 0.85}, 5.0, Binding.TPOT),
        (
            {"ttft_attainment": 0.99, "tpot_attainment": 0.85, "slot_waits": 0.1},
            5.0,
            Binding.DECODE_SLOTS,
        ),
        ({"ttft_attainment": 0.85, "overflow": 0.1}, 5.0, Binding.PREFILL_MEMORY),
        ({}, 9.99, Binding.PREFILL_CAPACITY),
        ({"ttft_attainment": 0.2}, 0.0, Binding.TTFT_UNREACHABLE),
        ({"tpot_attainment": 0.2}, 0.0, Binding.TPOT_UNREACHABLE),
    ],
)
def test_what_binds(changes, goodput, expected):
    base = metrics(_chat(), LABEL, 1.0)
    zero = {"slot_waits": 0.0, "overflow": 0.0, "ttft_attainment": 1.0, "tpot_attainment": 1.0}
    found = dataclasses.replace(base, **{k: jnp.array(v) for k, v in (zero | changes).items()})
    limits = tuple(jnp.array(x) for x in (10.0, 20.0, 30.0))
    assert _binding(goodput, found, limits) is expected


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((1.0, 2.0, 3.0), Binding.PREFILL_CAPACITY),
        ((3.0, 1.0, 2.0), Binding.LINK),
        ((3.0, 2.0, 1.0), Binding.DECODE_CAPACITY),
    ],
)
def test_a_saturated_stage_binds(limits, expected):
    found = metrics(_chat(), LABEL, 1.0)
    assert _binding(0.999, found, tuple(jnp.array(x) for x in limits)) is expected
