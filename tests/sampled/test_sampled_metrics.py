"""Metrics on sampled traces against the event simulator's records of the same requests."""

import dataclasses

import numpy as np
import pytest
from sampled_helpers import one_of, problem_of, system_of, trace_of

from fluidserve import eventsim
from fluidserve.sampled.metrics import LEVELS, measure
from fluidserve.sampled.trace import TAIL, WARMUP
from fluidserve.specs.slo import Slo

RATES = np.array([1.0, 4.0, 6.0])
SLO = Slo(ttft=0.15, tpot=0.03)


@pytest.mark.parametrize("label", ["1C tp2", "2P2D tp1/tp1"])
def test_metrics_are_those_of_the_simulator(label):
    system = system_of(problem_of("paper", first_token="prefill"), label)
    trace = trace_of()
    found = measure(system, RATES, SLO, [trace])
    for i, rate in enumerate(RATES):
        records = eventsim.run(
            one_of(system, i), trace.arrival / rate, trace.n_in, trace.n_out, record_gaps=True
        ).window(warmup=WARMUP, tail=TAIL)
        assert found.attainment[i] == pytest.approx(eventsim.attainment(records, SLO), abs=1e-12)
        several = records.n_out > 1
        for ours, theirs in (
            (found.ttft, records.ttft),
            (found.tpot, records.tpot[several]),
            (found.e2e, records.e2e),
        ):
            np.testing.assert_allclose(ours[:, i], np.quantile(theirs, LEVELS), rtol=1e-6)
        assert records.gaps is not None
        gaps = np.quantile(records.gaps.values, LEVELS)
        np.testing.assert_allclose(found.itl[:2, i], gaps[:2], rtol=0.015)
        np.testing.assert_allclose(found.itl[2, i], gaps[2], rtol=0.06)  # which tokens count


def test_two_traces_give_a_mean_and_an_error():
    system = system_of(problem_of("paper"), "1C tp2")
    traces = [trace_of(seed=1), trace_of(seed=2)]
    both = measure(system, RATES, SLO, traces)
    single = [measure(system, RATES, SLO, [trace]) for trace in traces]
    shares = np.array([m.attainment for m in single])
    np.testing.assert_allclose(both.attainment, shares.mean(0))
    np.testing.assert_allclose(both.error, abs(np.diff(shares, axis=0))[0] / 2, atol=1e-12)
    assert np.isinf(single[0].error).all()


def test_without_room_nothing_is_met():
    system = system_of(problem_of("paper"), "1C tp2")
    instance = dataclasses.replace(system.instance, kv_capacity=100.0)
    found = measure(dataclasses.replace(system, instance=instance), RATES, SLO, [trace_of()])
    assert (found.attainment == 0.0).all()
    assert np.isinf(found.ttft).all()
