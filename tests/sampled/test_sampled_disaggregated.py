"""Disaggregated deployments on a sampled trace against the event simulator."""

import dataclasses

import numpy as np
import pytest
from sampled_helpers import (
    largest_difference,
    problem_of,
    quickly_served,
    simulated,
    system_of,
    trace_of,
)

from fluidserve.errors import InputError
from fluidserve.eventsim.dispatch import stream
from fluidserve.sampled.serve import serve

RATES = np.array([0.1, 2.0, 5.0, 8.0])
HITS = np.array([0.0, 0.1, 0.4, 0.8])


@pytest.mark.parametrize(
    ("profile", "label", "dispatch", "first_token"),
    [
        ("paper", "1P1D tp2/tp2", "shared", "prefill"),
        ("default", "3P1D tp2pp2/tp4", "shared", "decode"),
        ("paper", "2P3D tp1/tp1", "shared", "prefill"),
        ("paper", "2P3D tp1/tp1", "random", "decode"),
        ("paper", "2P1D tp1/tp2", "round-robin", "prefill"),
    ],
)
def test_requests_pass_all_stages_as_in_the_simulator(profile, label, dispatch, first_token):
    engine = {"dispatch": dispatch, "first_token": first_token, "link_bandwidth": 6e9}
    system, trace = system_of(problem_of(profile, **engine), label), trace_of()
    system = dataclasses.replace(system, prefix_hit=HITS)
    rng, n, k = stream(0), int(system.n_prefill), int(system.n_decode)
    first, second = (rng.integers(x, size=len(trace)) for x in (n, k))
    trace = dataclasses.replace(trace, choice=(first + (second + 0.5) / k) / n)
    served = quickly_served(system, RATES, trace)
    assert largest_difference(served, simulated(system, RATES, trace)) < 1e-9


def full(label, max_batch, rates):
    """Latencies where requests wait for places in decode, here and in the simulator."""
    engine = {"first_token": "prefill", "link_bandwidth": 6e9, "max_batch": max_batch}
    system, trace = system_of(problem_of("paper", **engine), label), trace_of()
    system = dataclasses.replace(system, prefix_hit=HITS)
    return quickly_served(system, rates, trace), simulated(system, rates, trace)


def test_one_full_decode_instance_is_that_of_the_simulator():
    served, expected = full("1P1D tp2/tp2", 8, np.array([3.0, 4.0, 5.0, 5.5]))
    assert largest_difference(served, expected) < 1e-9


def test_several_full_decode_instances_are_close():
    """A late pull finds the link as it was when prefill ended."""
    served, expected = full("2P3D tp1/tp1", 4, np.array([2.0, 2.5, 3.0, 3.25]))
    assert largest_difference(served, expected) > 1e-3
    np.testing.assert_allclose(served.e2e.mean(1), expected.e2e.mean(1), rtol=0.01)
    middle, theirs = (np.median(x.tpot, axis=1) for x in (served, expected))
    np.testing.assert_allclose(middle, theirs, rtol=0.01)


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
