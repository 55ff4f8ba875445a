"""The batched loop against the event simulator, request by request."""

import dataclasses

import jax
import numpy as np
import pytest
from sampled_helpers import one_of, problem_of, system_of, varied

from fluidserve import eventsim
from fluidserve.eventsim.dispatch import stream
from fluidserve.sampled.serve import serve
from fluidserve.sampled.trace import Trace, draw_trace

RATES = np.array([0.1, 2.0, 5.0, 7.0, 4.0, 4.0, 4.0, 30.0])
LIMITS = {
    "max_batch": np.array([1024.0, 1024.0, 1024.0, 1024.0, 1024.0, 9.0, 20.0, 1024.0]),
    "kv_capacity": np.array([1e12, 1e5, 1e5, 1e5, 4100.0, 1e5, 1e4, 1e5]),
    "prefix_hit": np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.3, 0.7, 0.13]),
}
"""Idle, usual, busy, overloaded; few tokens, few slots, both, an overload with a cache."""
BUDGETS = np.array([512.0, 512.0, 512.0, 256.0, 2048.0, 512.0, 300.0, 24.0])
"""The last one is less than the decoding requests use."""


def trace_of(n=400, seed=3):
    drawn = draw_trace(problem_of("paper").workload, seed=seed, requests=n)
    n_in, n_out = np.minimum(drawn.n_in, 2000), np.minimum(drawn.n_out, 500)
    n_out[::7] = 1  # leave with their first token
    n_out[3::11] = 2
    return dataclasses.replace(drawn, n_in=n_in, n_out=n_out)


def worst(system, rates, trace):
    """Largest difference of a TTFT and of a TPOT, s."""
    served = serve(system, rates, trace)
    pairs = []
    for i, rate in enumerate(rates):
        one = one_of(system, i)
        records = eventsim.run(one, trace.arrival / rate, trace.n_in, trace.n_out)
        pairs.append((records.ttft, records.tpot))
    ttft, tpot = (np.stack(x) for x in zip(*pairs, strict=True))
    return np.abs(served.ttft - ttft).max(), np.abs(served.tpot - tpot).max()


@pytest.mark.parametrize("profile", ["paper", "default"])
@pytest.mark.parametrize("label", ["1S tp4 b512", "1C tp4"])
def test_every_request_is_served_as_by_the_simulator(profile, label):
    system = varied(system_of(problem_of(profile), label), **LIMITS)
    change = {"token_budget": BUDGETS} if "S" in label else {"prefill_tokens": 4.0 * BUDGETS}
    system = dataclasses.replace(system, **change)
    assert max(worst(system, RATES, trace_of())) < 1e-9


def test_the_comparison_notices_one_token_more():
    trace = trace_of()
    system = varied(system_of(problem_of("paper"), "1S tp4 b512"), **LIMITS)
    system = dataclasses.replace(system, token_budget=BUDGETS)
    served = serve(system, RATES, trace)
    longer = dataclasses.replace(trace, n_out=trace.n_out + (np.arange(len(trace)) == 200))
    assert np.abs(serve(system, RATES, longer).tpot - served.tpot).max() > 1e-6


def test_requests_at_one_time_are_prefilled_together():
    """Three prompts of 100 tokens at once: one iteration of 300 tokens, then two of decode."""
    system = varied(system_of(problem_of("paper"), "1C tp1"))
    trace = Trace(
        arrival=np.ones(3), n_in=np.full(3, 100), n_out=np.array([1, 2, 3]), choice=np.zeros(3)
    )
    served = serve(system, 1.0, trace)
    instance = system.instance
    pairs = instance.prefill_work(100.0)
    together = float(instance.times.stage_time(pairs + pairs + pairs))
    two = float(instance.decode_time(2.0, 202.0))
    one = float(instance.decode_time(1.0, 102.0))
    np.testing.assert_allclose(served.ttft[0], together, rtol=1e-12)
    np.testing.assert_allclose(served.tpot[0], [0.0, two, 0.5 * (two + one)], rtol=1e-12)
    np.testing.assert_allclose(served.e2e[0], together + np.array([0.0, two, two + one]))


def test_what_does_not_fit_is_never_served():
    system = varied(system_of(problem_of("paper"), "1C tp4"), kv_capacity=[1e12, 1e3])
    served = serve(system, 1.0, trace_of(64))
    assert np.isfinite(served.ttft[0]).all()
    assert np.isinf(served.ttft[1]).all()
    assert np.isinf(served.e2e[1]).all()


def test_narrow_floats_have_the_same_statistics():
    system = varied(system_of(problem_of("paper"), "1S tp4 b512"), **LIMITS)
    system = dataclasses.replace(system, token_budget=BUDGETS)
    wide = serve(system, RATES, trace_of())
    with jax.enable_x64(False):
        narrow = serve(system, RATES, trace_of())
    assert narrow.ttft.dtype == np.float32
    np.testing.assert_allclose(narrow.ttft.mean(1), wide.ttft.mean(1), rtol=2e-3)
    np.testing.assert_allclose(narrow.tpot.mean(1), wide.tpot.mean(1), rtol=1e-3)


@pytest.mark.parametrize("derivative", [jax.jacfwd, jax.jacrev])
def test_differentiation_is_refused(derivative):
    system, trace = varied(system_of(problem_of("paper"), "1C tp4")), trace_of(64)
    with pytest.raises(TypeError, match="finite differences"):
        derivative(lambda rate: serve(system, rate, trace).ttft.mean())(2.0)


@pytest.mark.parametrize("dispatch", ["shared", "round-robin", "random"])
@pytest.mark.parametrize("label", ["3S tp1 b512", "4C tp1"])
def test_several_instances_are_those_of_the_simulator(label, dispatch):
    system = varied(system_of(problem_of("paper", dispatch=dispatch), label), **LIMITS)
    replicas, trace = int(system.replicas), trace_of()
    chosen = stream(0).integers(replicas, size=len(trace))
    trace = dataclasses.replace(trace, choice=(chosen + 0.5) / replicas)
    assert max(worst(system, 1.5 * RATES, trace)) < 1e-9
