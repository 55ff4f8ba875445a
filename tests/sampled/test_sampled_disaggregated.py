"""Disaggregated deployments on a sampled trace against the event simulator."""

import dataclasses

import numpy as np
import pytest
from sampled_helpers import one_of, problem_of, system_of
from test_engine import trace_of

from fluidserve import eventsim
from fluidserve.errors import InputError
from fluidserve.eventsim.dispatch import stream
from fluidserve.sampled.serve import serve

RATES = np.array([0.1, 2.0, 5.0, 8.0])


def simulated(system, rates, trace):
    found = []
    for i, rate in enumerate(rates):
        one = one_of(system, i)
        records = eventsim.run(one, trace.arrival / rate, trace.n_in, trace.n_out)
        found.append((records.ttft, records.tpot, records.e2e))
    return np.stack(found, axis=1)


@pytest.mark.parametrize(
    ("profile", "label", "dispatch", "first_token"),
    [
        ("paper", "1P1D tp2/tp2", "shared", "prefill"),
        ("paper", "3P1D tp1pp2/tp2", "shared", "decode"),
        ("paper", "2P3D tp1/tp1", "shared", "prefill"),
        ("default", "3P2D tp4/tp4", "random", "decode"),
        ("paper", "2P3D tp1/tp1", "round-robin", "prefill"),
    ],
)
def test_requests_pass_all_stages_as_in_the_simulator(profile, label, dispatch, first_token):
    problem = problem_of(profile, dispatch=dispatch, first_token=first_token, link_bandwidth=6e9)
    system, trace = system_of(problem, label), trace_of()
    system = dataclasses.replace(system, prefix_hit=np.array([0.0, 0.1, 0.4, 0.8]))
    rng, n, k = stream(0), int(system.n_prefill), int(system.n_decode)
    first, second = (rng.integers(x, size=len(trace)) for x in (n, k))
    trace = dataclasses.replace(trace, choice=(first + (second + 0.5) / k) / n)
    served = serve(system, RATES, trace)
    np.testing.assert_allclose(np.stack(served), simulated(system, RATES, trace), atol=1e-9)


def test_full_decode_batches_are_close():
    """Where requests wait for places in decode, the pull begins too early."""
    problem = problem_of("paper", first_token="prefill", link_bandwidth=25e9, max_batch=24)
    system, trace = system_of(problem, "2P1D tp1/tp2"), trace_of()
    rates = np.array([3.0, 4.0, 5.0])
    served, expected = np.stack(serve(system, rates, trace)), simulated(system, rates, trace)
    np.testing.assert_allclose(served.mean(2), expected.mean(2), rtol=0.02)


@pytest.mark.parametrize(
    ("label", "engine", "part"),
    [
        ("1P1D tp1/tp1pp2", {}, "decode.pp"),
        ("2P1D tp1/tp1", {"dispatch": "jsq"}, "dispatch"),
        ("1P1D tp1/tp1", {"prefill_tokens": 2048}, "prefill_batch"),
        ("1P17D tp1/tp1", {}, "n_decode"),
    ],
)
def test_what_the_recursions_do_not_have_is_refused(label, engine, part):
    with pytest.raises(InputError, match=f"sampled: {part}: only"):
        serve(system_of(problem_of("paper", **engine), label), 1.0, trace_of(64))
