"""Instances that do both phases against loops that look at every request in every iteration."""

import dataclasses

import numpy as np
import pytest
from aggregated_oracle import Oracle
from eventsim_helpers import INF, LinearTimes, make_aggregated
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidserve.eventsim import draw_requests, run
from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.problem import Problem, engine_for
from fluidserve.specs.applications import find_application
from fluidserve.specs.deployment import parse_label
from fluidserve.specs.slo import Slo
from fluidserve.timing.kv import KvShape
from fluidserve.timing.profile import load_profile

EIGHTH = 0.125
TIMES = LinearTimes(
    fixed=0.5, per_new=EIGHTH, per_pair=EIGHTH**3, per_read=EIGHTH**2, per_sequence=0.25
)
"""Powers of two, so that no sum is rounded and equal times are equal in any order of adding."""
SHAPES = (
    None,
    KvShape(held=0.25, read=0.25, pairs=0.5, window=9.0, state=0.0),
    KvShape(held=1.0, read=0.125, pairs=0.25, window=5.0, state=1.5),
)


@st.composite
def cases(draw):
    """One instance under load, often short of places or memory, and its requests."""
    n = draw(st.integers(1, 20))
    n_in = np.array(draw(st.lists(st.integers(1, 30), min_size=n, max_size=n)))
    n_out = np.array(draw(st.lists(st.integers(1, 12), min_size=n, max_size=n)))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.125, 2.5, 30.0]), min_size=n, max_size=n))
    system = make_aggregated(
        TIMES,
        kv_capacity=draw(st.sampled_from([44.0, 60.0, 100.0, INF])),
        kv=draw(st.sampled_from(SHAPES)),
        max_batch=draw(st.sampled_from([1, 3, INF])),
        prefill_tokens=draw(st.sampled_from([12.0, 40.0, INF])),
        token_budget=draw(st.sampled_from([None, None, 1.0, 4.0, 17.0, 64.0])),
        kv_policy=draw(st.sampled_from(["reserve", "preempt"])),
        prefix_hit=draw(st.sampled_from([None, 0.5])),
    )
    return system, np.cumsum(gaps), n_in, n_out


def compare(system, *requests, rtol=0.0):
    r = run(system, *requests, record_gaps=True)
    expected = Oracle(system, *requests).requests
    for i, request in enumerate(expected):
        tokens = r.first_token[i] + np.concatenate([[0.0], np.cumsum(r.gaps.of(i))])
        np.testing.assert_allclose(tokens, request.tokens, rtol=rtol, atol=0.0)
        assert r.last_token[i] == pytest.approx(request.tokens[-1], rel=rtol, abs=0.0)
        assert r.preempted[i] == request.losses
    return r


@settings(max_examples=300, deadline=None, derandomize=True)
@given(cases())
def test_every_token_leaves_when_it_should(case):
    compare(*case)


def test_comparison_can_fail():
    system = make_aggregated(TIMES, prefill_tokens=12.0)
    requests = (np.zeros(3), np.array([6, 6, 6]), np.ones(3, int))
    found = run(dataclasses.replace(system, prefill_tokens=11.0), *requests).last_token
    right = [r.tokens[-1] for r in Oracle(system, *requests).requests]
    assert found[1] != right[1]


@pytest.mark.parametrize("policy", ["reserve", "preempt"])
@pytest.mark.parametrize("budget", [None, 16.0])
def test_memory_is_lost_again_and_again(budget, policy):
    """The cases above would be too mild for preemption if this one never showed any."""
    rng = np.random.default_rng(5)
    requests = (np.arange(60) * 4.0, rng.integers(1, 20, 60), rng.integers(1, 40, 60))
    system = make_aggregated(TIMES, kv_capacity=70.0, kv_policy=policy, token_budget=budget)
    r = compare(system, *requests)
    assert (r.preempted.max() > 1) == (policy == "preempt")


@pytest.mark.parametrize(
    ("label", "max_batch", "kv_capacity"),
    [
        ("1C tp1", 256, None),
        ("1C tp1", 12, None),
        ("1C tp1", 256, 20_000.0),
        ("1S tp1 b512", 256, 20_000.0),
        ("1S tp1 b128", 24, None),
    ],
)
def test_chat_on_an_a100(label, max_batch, kv_capacity):
    """500 requests at a rate where queues build up, with the step times of a model."""
    gpu, profile = find_gpu("A100-SXM4-80GB"), load_profile("paper")
    problem = Problem(
        model=find_model("OPT-13B"),
        gpu=gpu,
        workload=find_application("chatbot"),
        slo=Slo(ttft=0.25, tpot=0.1, attainment=0.9),
        engine=engine_for(profile, gpu, max_batch=max_batch),
    )
    system = problem.system(parse_label(label, gpu=gpu.name))
    if kv_capacity is not None:
        tight = dataclasses.replace(system.instance, kv_capacity=kv_capacity)
        system = dataclasses.replace(system, instance=tight)
    unit, n_in, n_out = draw_requests(problem.workload, 500, seed=4)
    r = compare(system, unit / 4.0, n_in, n_out, rtol=1e-9)
    if kv_capacity is not None:
        assert r.memory_stall.max() > 0
