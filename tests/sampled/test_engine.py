"""The batched loop against the event simulator, request by request."""

import dataclasses

import jax
import numpy as np
import pytest
from sampled_helpers import (
    largest_difference,
    problem_of,
    quickly_served,
    simulated,
    system_of,
    trace_of,
    varied,
)

from fluidserve.eventsim.dispatch import stream
from fluidserve.sampled.serve import serve

RATES = np.array([0.1, 2.0, 5.0, 7.0, 4.0, 4.0, 4.0, 30.0])
LIMITS = {
    "max_batch": np.array([1024.0, 1024.0, 1024.0, 1024.0, 1024.0, 9.0, 20.0, 1024.0]),
    "kv_capacity": np.array([1e12, 1e5, 1e5, 1e5, 4100.0, 1e5, 1e4, 1e5]),
    "prefix_hit": np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.3, 0.7, 0.13]),
}
"""Idle, usual, busy, overloaded; few tokens, few slots, both, an overload with a cache."""
BUDGETS = np.array([512.0, 512.0, 512.0, 256.0, 2048.0, 512.0, 300.0, 24.0])
"""The last one is less than the decoding requests use."""
TRACE = trace_of()


def deployments(profile, label, **engine):
    """Eight deployments of one kind with these limits."""
    system = varied(system_of(problem_of(profile, **engine), label), **LIMITS)
    if system.token_budget is None:
        return dataclasses.replace(system, prefill_tokens=4.0 * BUDGETS)
    return dataclasses.replace(system, token_budget=BUDGETS)


@pytest.mark.parametrize("profile", ["paper", "default"])
@pytest.mark.parametrize("label", ["1S tp4 b512", "1C tp4"])
def test_every_request_is_served_as_by_the_simulator(profile, label):
    system = deployments(profile, label)
    expected = simulated(system, RATES, TRACE)
    assert largest_difference(quickly_served(system, RATES, TRACE), expected) < 1e-9


@pytest.mark.parametrize(("label", "dispatch"), [("3S tp1 b512", "shared"), ("2C tp1", "random")])
def test_several_instances_are_those_of_the_simulator(label, dispatch):
    system = deployments("paper", label, dispatch=dispatch)
    replicas = int(system.replicas)
    chosen = stream(0).integers(replicas, size=len(TRACE))
    trace = dataclasses.replace(TRACE, choice=(chosen + 0.5) / replicas)
    served = quickly_served(system, 1.5 * RATES, trace)
    assert largest_difference(served, simulated(system, 1.5 * RATES, trace)) < 1e-9


def test_the_comparison_notices_one_token_more():
    system = deployments("paper", "1S tp4 b512")
    served = quickly_served(system, RATES, TRACE)
    longer = dataclasses.replace(TRACE, n_out=TRACE.n_out + (np.arange(len(TRACE)) == 200))
    assert largest_difference(quickly_served(system, RATES, longer), served) > 1e-6


def test_requests_at_one_time_are_prefilled_together():
    """Three prompts of 100 tokens at once: one iteration of 300 tokens, then two of decode."""
    system = deployments("paper", "1C tp4")
    arrival, n_in, n_out = (np.array(x) for x in (TRACE.arrival, TRACE.n_in, TRACE.n_out))
    arrival[:3], n_in[:3], n_out[:3] = 1.0, 100, [1, 2, 3]
    arrival[3:] += 1000.0
    trace = dataclasses.replace(TRACE, arrival=arrival, n_in=n_in, n_out=n_out)
    served = quickly_served(system, RATES, trace)
    instance = system.instance
    prompt = instance.prefill_work(100.0)
    together = float(instance.times.stage_time(prompt + prompt + prompt))
    two = float(instance.decode_time(2.0, 202.0))
    one = float(instance.decode_time(1.0, 102.0))
    np.testing.assert_allclose(served.ttft[1, :3], together, rtol=1e-9)
    np.testing.assert_allclose(served.tpot[1, :3], [0.0, two, 0.5 * (two + one)], rtol=1e-9)
    ends = together + np.array([0.0, two, two + one])
    np.testing.assert_allclose(served.e2e[1, :3], ends, rtol=1e-9)


def test_narrow_floats_have_the_same_statistics():
    system = deployments("paper", "1S tp4 b512")
    wide = quickly_served(system, RATES, TRACE)
    with jax.enable_x64(False):
        narrow = quickly_served(system, RATES, TRACE)
    assert narrow.ttft.dtype == np.float32
    np.testing.assert_allclose(narrow.ttft.mean(1), wide.ttft.mean(1), rtol=2e-3)
    np.testing.assert_allclose(narrow.tpot.mean(1), wide.tpot.mean(1), rtol=1e-3)


def test_what_does_not_fit_is_never_served():
    system = varied(system_of(problem_of("paper"), "1C tp4"), kv_capacity=[1e12, 1e3])
    served = serve(system, 1.0, trace_of(64))
    assert np.isfinite(served.ttft[0]).all()
    assert np.isinf(served.ttft[1]).all()
    assert np.isinf(served.e2e[1]).all()


@pytest.mark.parametrize("derivative", [jax.jacfwd, jax.jacrev])
@pytest.mark.parametrize("label", ["1C tp4", "2C tp4"])
def test_differentiation_is_refused(label, derivative):
    system, trace = system_of(problem_of("paper"), label), trace_of(64)
    with pytest.raises(TypeError, match="finite differences"):
        derivative(lambda rate: serve(system, rate, trace).ttft.mean())(2.0)


def test_step_times_that_are_no_numbers_end_the_run():
    system = deployments("paper", "1C tp4")
    rates = np.where(np.arange(len(RATES)) == 3, np.nan, RATES)
    served = quickly_served(system, rates, TRACE)
    assert np.isfinite(np.delete(served.ttft, 3, axis=0)).all()
