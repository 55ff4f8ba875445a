"""Goodput on sampled traces: against the event simulator on the same requests."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from sampled_helpers import problem_of, system_of, varied

from fluidserve import eventsim
from fluidserve.errors import InputError
from fluidserve.eventsim import measure
from fluidserve.sampled.goodput import goodput
from fluidserve.sampled.trace import TAIL, WARMUP, draw_trace
from fluidserve.specs.slo import Slo

PAPER = problem_of("paper")
TRACES = [draw_trace(PAPER.workload, seed=seed, requests=400) for seed in (0, 1)]
SYSTEM = system_of(PAPER, "1S tp2 b512")


def excess(slo, trace, rate):
    """What the event simulator finds to spare on a trace."""
    records = eventsim.run(SYSTEM, trace.arrival / rate, trace.n_in, trace.n_out)
    return measure.excess(records.window(warmup=WARMUP, tail=TAIL), slo)


def promise(*, e2e=math.inf, shares=(0.0, 0.0, 0.0), **limits):
    """A promise of one form, so that one program serves them all."""
    ttft, tpot, whole = shares
    return Slo(e2e=e2e, ttft_share=ttft, tpot_share=tpot, e2e_share=whole, **limits)


@pytest.mark.parametrize(
    "slo",
    [
        promise(ttft=0.25, tpot=0.03),
        promise(ttft=0.25, tpot=0.1, shares=(0.8, 0.99, 0.0)),
        promise(ttft=0.5, tpot=0.1, e2e=8.0, shares=(0.0, 0.0, 0.9)),
    ],
    ids=["joint", "shares", "e2e"],
)
def test_the_simulator_finds_the_promise_just_kept(slo):
    """Within two requests in a hundred: attainment moves by jumps as requests change places."""
    found = goodput(SYSTEM, slo, TRACES, guess=6.0)
    assert found.bracketed.all()
    for trace, rate in zip(TRACES, found.of_traces[:, 0], strict=True):
        assert abs(excess(slo, trace, rate)) < 0.02
        assert excess(slo, trace, 1.1 * rate) < 0.0 < excess(slo, trace, 0.9 * rate)
    assert found.value[0] == pytest.approx(found.of_traces.mean())
    assert found.error[0] == pytest.approx(abs(np.diff(found.of_traces[:, 0])[0]) / 2)


def test_a_batch_is_its_candidates_one_by_one():
    budgets = np.array([64.0, 512.0, 4096.0])
    batch = dataclasses.replace(varied(SYSTEM, kv_capacity=[1e6, 1e6, 1e5]), token_budget=budgets)
    slo = promise(ttft=np.array([0.3, 0.2, 0.3]), tpot=0.05)
    found = goodput(batch, slo, TRACES, guess=5.0)
    alone = [
        goodput(
            dataclasses.replace(varied(SYSTEM, kv_capacity=c), token_budget=b),
            promise(ttft=t, tpot=0.05),
            TRACES,
            guess=5.0,
        ).value[0]
        for b, c, t in zip(budgets, [1e6, 1e6, 1e5], slo.ttft, strict=True)
    ]
    np.testing.assert_allclose(found.value, alone, rtol=1e-12)


def test_narrow_floats_find_the_same_goodput():
    """On the same traces within 0.5 %."""
    system = dataclasses.replace(SYSTEM, token_budget=np.array([64.0, 256.0, 512.0, 1024.0]))
    slo = promise(ttft=0.25, tpot=np.array([0.02, 0.03, 0.04, 0.1]))
    wide = goodput(system, slo, TRACES, guess=6.0)
    with jax.enable_x64(False):
        narrow = goodput(system, slo, TRACES, guess=6.0)
    np.testing.assert_allclose(narrow.of_traces, wide.of_traces, rtol=5e-3)


def test_what_cannot_be_kept_and_what_does_not_fit_is_zero():
    system = varied(SYSTEM, kv_capacity=[1e6, 100.0])
    slo = promise(ttft=np.array([1e-6, 10.0]), tpot=1.0)
    found = goodput(system, slo, TRACES, guess=1.0)
    assert found.value.tolist() == [0.0, 0.0]


def test_without_a_limit_on_ttft_the_backlog_decides():
    found = goodput(SYSTEM, Slo(tpot=0.5), TRACES[:1], guess=6.0)
    assert found.bracketed.all()
    for factor, grows in ((0.97, False), (1.03, True)):
        trace, rate = TRACES[0], factor * found.value[0]
        records = eventsim.run(SYSTEM, trace.arrival / rate, trace.n_in, trace.n_out)
        assert (measure.growth(records) > 0.01) == grows


@pytest.mark.parametrize(
    ("label", "engine", "part"),
    [
        ("17C tp2", {}, "replicas"),
        ("1C tp2pp2", {}, "pp"),
        ("1S tp2 b512", {"kv_policy": "preempt"}, "kv_policy"),
    ],
)
def test_what_the_loop_does_not_have_is_refused(label, engine, part):
    with pytest.raises(InputError, match=f"sampled: {part}: only"):
        goodput(system_of(problem_of("paper", **engine), label), Slo(), TRACES, guess=1.0)


def test_limits_on_single_gaps_are_refused():
    with pytest.raises(InputError, match="gaps are measured at a rate"):
        goodput(SYSTEM, Slo(ttft=0.25, itl=0.1), TRACES, guess=6.0)
