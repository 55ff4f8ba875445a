"""Limits with shares of their own, and end-to-end latency, at a rate and at the goodput."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from analysis_helpers import make_problem, plan_of, quick_jit
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidserve.deploy.binding import binding_of
from fluidserve.deploy.disaggregated import at_rate, evaluate, largest_rate
from fluidserve.deploy.end_to_end import sum_within, time_grid
from fluidserve.deploy.latency import latencies
from fluidserve.eventsim import simulate
from fluidserve.goodput import largest_meeting
from fluidserve.search.score import as_arrays
from fluidserve.specs.applications import synthetic_workload
from fluidserve.specs.deployment import parse_label
from fluidserve.specs.slo import Slo
from fluidserve.status import Binding
from fluidserve.testing import assert_no_nan

LABEL = "2P2D tp1/tp1"
INF = math.inf


def promise(**limits):
    """A promise in the form of two programs: with shares, and with or without an E2E limit."""
    shares = {f"{m}_share": limits.get(f"{m}_share", 0.0) for m in ("ttft", "tpot", "e2e")}
    return as_arrays(Slo(**(limits | shares)))


@functools.cache
def chat():
    return plan_of(make_problem(link=25e9), LABEL)


@quick_jit
def evaluated(plan, slo, rate):
    return evaluate(plan, slo, rate)


def searched(plan, slo):
    upper = functools.reduce(jnp.minimum, largest_rate(plan))
    found = largest_meeting(lambda rate: evaluate(plan, slo, rate).excess, 0.0, upper)
    at = evaluate(plan, slo, jnp.where(found > 0.0, found, 1e-4 * upper))
    return found, binding_of(found, at, largest_rate(plan), plan, slo)


goodput = quick_jit(searched)
_goodput_slopes = quick_jit(jax.grad(lambda plan, slo: searched(plan, slo)[0], argnums=1))


def rate_of(**limits):
    return float(goodput(chat(), promise(**limits))[0])


def test_a_limit_by_itself_is_a_joint_one_without_the_other():
    """``p90`` on TTFT alone, and joint attainment of 0.9 with any TPOT."""
    alone = rate_of(ttft=0.25, ttft_share=0.9)
    assert alone == pytest.approx(rate_of(ttft=0.25, attainment=0.9), rel=1e-4)
    plain = as_arrays(Slo(ttft=0.25, tpot=INF))
    assert alone == pytest.approx(float(goodput(chat(), plain)[0]), rel=1e-4)
    assert alone != pytest.approx(rate_of(ttft=0.25, ttft_share=0.95), rel=0.01)


def test_shares_of_their_own_bind_one_at_a_time():
    """The smallest goodput of the constraints taken singly; a joint limit asks for more."""
    ttft, tpot = rate_of(ttft=0.25, ttft_share=0.9), rate_of(tpot=0.035, tpot_share=0.9)
    both = rate_of(ttft=0.25, ttft_share=0.9, tpot=0.035, tpot_share=0.9)
    assert both == pytest.approx(min(ttft, tpot), rel=1e-4)
    assert rate_of(ttft=0.25, tpot=0.035) < 0.99 * both


def test_attainment_is_of_the_joint_limits_or_of_all():
    limits = {"ttft": 0.25, "tpot": 0.04, "e2e": 20.0}
    rate = jnp.array(7.0)

    def found(**shares):
        return evaluated(chat(), promise(**limits, **shares), rate)

    joint = found()
    assert float(joint.excess) == pytest.approx(float(joint.attainment) - 0.9, abs=1e-6)
    own = found(ttft_share=0.5, tpot_share=0.6, e2e_share=0.7)
    assert float(own.attainment) == pytest.approx(float(joint.attainment), abs=1e-6)
    spare = (own.ttft_attainment - 0.5, own.tpot_attainment - 0.6, own.e2e_attainment - 0.7)
    assert float(own.excess) == pytest.approx(float(min(spare)), abs=1e-6)
    mixed = found(ttft_share=0.5, e2e_share=0.7)
    assert float(mixed.attainment) == pytest.approx(float(own.tpot_attainment), abs=1e-6)


def test_tpot_by_itself_counts_requests_that_have_one():
    """Of requests of which half have a single output token, the others must meet the limit."""
    lengths = synthetic_workload(512, 2, 0.0, 0.6)
    plan = plan_of(make_problem(workload=lengths, link=25e9), LABEL)
    single = float(plan.bins.out_share[0])
    assert 0.2 < single < 0.8
    at = evaluated(plan, promise(tpot=0.026, tpot_share=0.9), jnp.array(4.0))
    of_all, spare = float(at.tpot_attainment), float(at.excess)
    assert spare + 0.9 == pytest.approx((of_all - single) / (1.0 - single), abs=1e-5)


LIMITS = {
    "ttft": st.floats(0.1, 1.0),
    "tpot": st.floats(0.02, 0.1),
    "e2e": st.floats(2.0, 40.0),
    "ttft_share": st.sampled_from([0.0, 0.5, 0.9, 0.99]),
    "tpot_share": st.sampled_from([0.0, 0.5, 0.9, 0.99]),
    "e2e_share": st.sampled_from([0.0, 0.5, 0.9, 0.99]),
}


@settings(deadline=None, max_examples=15)
@given(limits=st.fixed_dictionaries(LIMITS), which=st.sampled_from(sorted(LIMITS)))
def test_goodput_falls_as_anything_is_tightened(limits, which):
    looser = rate_of(**limits)
    tight = dict(limits)
    if which.endswith("share"):
        if not limits[which]:
            return
        tight[which] = 0.5 * (1.0 + limits[which])
    else:
        tight[which] *= 0.8
    assert rate_of(**tight) <= looser * (1.0 + 1e-3) + 1e-6


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"ttft": 0.4, "ttft_share": 0.95, "tpot": 1.0, "tpot_share": 0.5}, Binding.TTFT),
        ({"ttft": 9.0, "ttft_share": 0.5, "tpot": 0.032, "tpot_share": 0.9}, Binding.TPOT),
        ({"e2e": 12.0, "e2e_share": 0.9}, Binding.E2E),
        ({"ttft": 5.0, "tpot": 1.0, "e2e": 12.0}, Binding.E2E),
        ({"e2e": 0.5, "e2e_share": 0.9}, Binding.E2E_UNREACHABLE),
        ({"ttft": 1e-3, "ttft_share": 0.1, "e2e": 90.0}, Binding.TTFT_UNREACHABLE),
        ({"tpot": 1e-3, "tpot_share": 0.1, "ttft": 9.0}, Binding.TPOT_UNREACHABLE),
        ({"tpot": 100.0, "tpot_share": 0.5}, Binding.DECODE_CAPACITY),
    ],
)
def test_what_binds(limits, expected):
    found, binding = goodput(chat(), promise(**limits))
    assert Binding(int(binding)) is expected
    assert (float(found) > 0.0) == ("unreachable" not in expected.label)


CASES = {
    "first token from prefill": ({"link": 25e9}, LABEL, 8.0),
    "pipeline, first token from decode": (
        {
            "model": "Qwen3-32B",
            "gpu": "H200-SXM",
            "profile": "default",
            "link": 50e9,
            "workload": synthetic_workload(2000, 200, 0.5, 0.8),
        },
        "1P1D tp2pp2/tp4",
        4.0,
    ),
}


@quick_jit
def _latencies(plan, slo, rate):
    return latencies(plan, at_rate(plan, rate), slo=slo)


@pytest.mark.parametrize("case", CASES)
def test_end_to_end_latency_against_simulation(case):
    """Mean to 2 %, quantiles to 3 %."""
    changes, label, rate = CASES[case]
    problem = make_problem(**changes)
    found = _latencies(plan_of(problem, label), promise(e2e=1.0), jnp.array(rate))
    system = problem.system(parse_label(label, gpu=problem.gpu.name))
    e2e = simulate(system, problem.workload, rate, requests=5000, seed=3).window().e2e
    assert float(found.e2e_mean) == pytest.approx(e2e.mean(), rel=0.02)
    np.testing.assert_allclose(found.e2e[:3], np.quantile(e2e, (0.5, 0.9, 0.99)), rtol=0.03)


def test_the_asked_quantile_is_the_last_one():
    slo = promise(ttft=1.0, ttft_share=0.95, tpot=1.0, e2e=9.0, e2e_share=0.99)
    found = _latencies(chat(), slo, jnp.array(6.0))
    assert float(found.ttft[1]) < float(found.ttft[3]) < float(found.ttft[2])
    assert float(found.tpot[3]) == pytest.approx(float(found.tpot[1]), rel=1e-6)
    assert float(found.e2e[3]) == pytest.approx(float(found.e2e[2]), rel=1e-6)
    limits = {"ttft": float(found.ttft[3]), "e2e": float(found.e2e[1])}
    at = evaluated(chat(), promise(**limits), jnp.array(6.0))
    assert float(at.ttft_attainment) == pytest.approx(0.95, abs=1e-4)
    assert float(at.e2e_attainment) == pytest.approx(0.9, abs=3e-3)


def test_a_sum_of_two_times_in_closed_form():
    """Exponential TTFT and exponential decode time of one mean: gamma with shape 2."""
    last = 5.0
    times = time_grid(jnp.array(1e-3), jnp.array(last))
    first = (1.0 - jnp.exp(-times))[:, None]
    rest = (1.0 - jnp.exp(-(last - times)))[:, None]
    got = float(sum_within(jnp.ones((1, 1)), first, rest))
    assert got == pytest.approx(1.0 - math.exp(-last) * (1.0 + last), abs=3e-3)
    # the comparison can fail: without the decode time the share is larger
    assert abs(got - float(first[-1, 0])) > 0.02


@pytest.mark.slow
def test_derivatives_of_goodput():
    """Slopes in every limit and share of a mixed promise, against central differences."""
    base = {"ttft": 0.4, "tpot": 0.1, "e2e": 14.0, "e2e_share": 0.9, "ttft_share": 0.5}
    slopes = _goodput_slopes(chat(), promise(**base))
    assert_no_nan(slopes)
    for name, step in (("e2e", 0.01), ("e2e_share", 0.003)):
        up, down = (rate_of(**(base | {name: base[name] * (1 + s)})) for s in (step, -step))
        measured = (up - down) / (2 * step * base[name])
        assert float(getattr(slopes, name)) == pytest.approx(measured, rel=0.05)
    for name in ("ttft", "tpot", "ttft_share"):  # these do not bind
        assert float(getattr(slopes, name)) == 0.0


@quick_jit
def _excess_slopes(plan, slo, rate):
    found = evaluate(plan, slo, rate)
    return found, jax.grad(lambda s: evaluate(plan, s, rate).excess)(slo)


def test_no_nan_without_limits_or_with_extreme_ones():
    """In float32, which loses the most."""
    with jax.enable_x64(False):
        plan = as_arrays(chat())
        for times in ({"e2e": INF}, {"e2e": 1e-6}, {"ttft": INF, "tpot": 1e-6, "e2e": 1e6}):
            for shares in ({}, {"ttft_share": 0.999, "tpot_share": 1e-3, "e2e_share": 0.999}):
                slo = promise(**({"ttft": 0.3} | times), **shares)
                for rate in (1e-9, 5.0, 1e9):
                    assert_no_nan(_excess_slopes(plan, slo, jnp.array(rate)))
