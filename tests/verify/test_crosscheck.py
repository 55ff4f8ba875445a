"""The simulator's word on a row, and what a disagreement does to its confidence."""

import dataclasses
import math

import numpy as np
import pytest

from fluidserve.errors import InputError
from fluidserve.eventsim import goodput, run, simulate, summarise
from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.problem import Problem, engine_for
from fluidserve.results import DeploymentResult, Latency, Phases, Simulated
from fluidserve.specs.applications import synthetic_workload
from fluidserve.specs.deployment import parse_label
from fluidserve.specs.slo import Slo
from fluidserve.specs.workload import JointLengths, Peak, Workload, busiest
from fluidserve.timing.profile import load_profile
from fluidserve.verify.crosscheck import (
    FEWEST_REQUESTS,
    MOST_REQUESTS,
    affordable,
    crosscheck,
    difference,
    replay,
    requests_for,
    stretch,
    with_check,
    with_neighbours,
)

GPU = find_gpu("A100")
PROBLEM = Problem(
    model=find_model("OPT-13B"),
    gpu=GPU,
    workload=synthetic_workload(512, 16),
    slo=Slo(ttft=0.4, tpot=0.04, attainment=0.9),
    engine=engine_for(load_profile("paper"), GPU),
)
ANY = Latency(mean=0.02, p50=0.02, p90=0.03, p99=0.04)
ROW = DeploymentResult(
    deployment=parse_label("2P1D tp1/tp1", gpu=GPU.name),
    kind="disaggregated",
    goodput=22.0,
    rate=20.0,
    ttft=ANY,
    tpot=ANY,
    attainment=0.9,
    prefill_load=0.8,
    link_load=0.1,
    decode_load=0.3,
    batch=6.0,
    kv_use=0.1,
    phases=Phases(queue=0.1, prefill=0.07, handover=0.01, first_step=0.02, decode=0.3),
    after_one_failure=9.0,
    binding="ttft",
    confidence="green",
    reasons=(),
)
SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def found() -> Simulated:
    return crosscheck(PROBLEM, ROW, requests=1000, seeds=SEEDS)


def test_goodput_is_that_of_the_simulator(found):
    system = PROBLEM.system(ROW.deployment)
    direct = goodput(
        system,
        PROBLEM.workload,
        PROBLEM.slo,
        guess=ROW.goodput,
        requests=1000,
        seeds=SEEDS,
        tolerance=0.02,
    )
    assert found.goodput == direct.value
    assert found.goodput_interval == (direct.low, direct.high)
    assert found.requests == 1000
    assert found.runs == direct.probes + len(SEEDS)


def test_times_are_those_at_the_rate_of_the_row(found):
    system = PROBLEM.system(ROW.deployment)
    runs = [
        summarise(simulate(system, PROBLEM.workload, 20.0, requests=1000, seed=s), PROBLEM.slo)
        for s in SEEDS
    ]
    assert found.ttft.p90 == pytest.approx(np.mean([r.ttft.p90 for r in runs]))
    assert found.tpot.mean == pytest.approx(np.mean([r.tpot.mean for r in runs]))
    assert found.attainment == pytest.approx(np.mean([r.attainment.value for r in runs]))


def recorded(n: int) -> Workload:
    """A recording with as many lengths as arrivals."""
    rng = np.random.default_rng(1)
    arrivals = np.cumsum(rng.exponential(0.1, n))
    pairs = JointLengths(n_in=np.full(n, 512), n_out=np.full(n, 16))
    return Workload(name="t", lengths=pairs, rate=10.0, arrivals=arrivals - arrivals[0])


def test_recorded_arrivals_are_replayed_once():
    problem = dataclasses.replace(PROBLEM, workload=recorded(800))
    replayed = crosscheck(problem, ROW, seeds=SEEDS)
    assert replayed.requests == 800
    assert replayed.goodput_interval == (-math.inf, math.inf)
    assert replayed == crosscheck(problem, ROW, seeds=(7,))


def test_a_stretch_is_the_start_of_the_recording():
    short = stretch(recorded(800), 100)
    assert len(short.arrivals) == len(short.lengths.n_in) == 100
    np.testing.assert_array_equal(short.arrivals, recorded(800).arrivals[:100])
    sampled = dataclasses.replace(recorded(800), arrivals=np.arange(900.0))
    assert len(stretch(sampled, 100).lengths.n_in) == 800
    assert len(stretch(PROBLEM.workload, 100).arrivals) == 0


def test_a_stretch_may_begin_later():
    late = stretch(recorded(800), 100, start=350)
    np.testing.assert_array_equal(late.arrivals, recorded(800).arrivals[350:450])
    assert len(late.lengths.n_in) == 100
    for start in (790, -5):  # moved so that it has its length
        assert len(stretch(recorded(800), 100, start=start).arrivals) == 100


def test_a_recording_is_replayed_at_its_own_speed():
    window = busiest(recorded(800), Peak(window=10.0, rate=18.0, arrival_scv=1.0))
    problem = dataclasses.replace(PROBLEM, workload=window)
    found = replay(problem, ROW)
    assert found is not None
    assert found.requests == 800
    assert found.rate == pytest.approx(799 / recorded(800).arrivals[-1])
    system = PROBLEM.system(ROW.deployment)
    alone = run(system, recorded(800).arrivals, np.full(800, 512), np.full(800, 16))
    assert found.ttft.p90 == pytest.approx(np.quantile(alone.ttft, 0.9), rel=1e-2)
    assert replay(PROBLEM, ROW) is None


def test_dear_recordings_are_cut_short():
    long_outputs = dataclasses.replace(PROBLEM, workload=synthetic_workload(512, 2000))
    alone = dataclasses.replace(ROW, batch=0.2)
    assert affordable(long_outputs, alone) == FEWEST_REQUESTS
    assert affordable(PROBLEM, ROW) == MOST_REQUESTS


def test_cheap_requests_make_longer_runs():
    long_outputs = dataclasses.replace(PROBLEM, workload=synthetic_workload(512, 2000))
    assert requests_for(long_outputs, dataclasses.replace(ROW, rate=0.1)) == FEWEST_REQUESTS
    assert requests_for(PROBLEM, ROW) > FEWEST_REQUESTS
    patient = dataclasses.replace(PROBLEM, slo=Slo(ttft=15.0, tpot=0.04, attainment=0.9))
    assert requests_for(patient, ROW) == 50 * 20 * 15
    assert requests_for(patient, dataclasses.replace(ROW, rate=500.0)) == MOST_REQUESTS


def test_a_request_that_has_no_room_is_refused():
    huge = dataclasses.replace(PROBLEM, workload=synthetic_workload(100_000, 16))
    with pytest.raises(InputError, match="kv_capacity"):
        crosscheck(huge, ROW, requests=100, seeds=(0,))


def simulated(value: float, half: float = 0.0) -> Simulated:
    interval = (value - half, value + half)
    return Simulated(
        goodput=value,
        goodput_interval=interval,
        attainment=0.9,
        ttft=ANY,
        tpot=ANY,
        e2e=ANY,
        requests=100,
        runs=1,
    )


@pytest.mark.parametrize(
    ("value", "half", "level"),
    [
        (22.0, 0.1, "green"),
        (21.2, 0.1, "green"),
        (20.5, 0.1, "amber"),
        (20.5, 2.0, "green"),
        (24.0, 0.1, "amber"),
        (18.0, 0.1, "red"),
        (28.0, 0.1, "red"),
        (0.0, 0.0, "red"),
        (18.0, math.inf, "red"),
    ],
)
def test_confidence_falls_where_the_two_differ(value, half, level):
    row = with_check(ROW, simulated(value, half))
    assert row.confidence == level
    assert row.simulated is not None
    assert len(row.reasons) == (level != "green")


def test_confidence_never_rises():
    red = dataclasses.replace(ROW, confidence="red", reasons=("old",))
    assert with_check(red, simulated(22.0)).confidence == "red"
    row = with_check(red, simulated(20.5))
    assert row.confidence == "red"
    assert row.reasons == ("old", "the formulas are +7% off the simulated goodput")


def test_a_surprise_spreads_to_rows_that_were_not_simulated():
    fine, off = with_check(ROW, simulated(22.0)), with_check(ROW, simulated(18.0))
    assert with_neighbours([fine, ROW]) == [fine, ROW]
    kept, doubted = with_neighbours([off, ROW])
    assert kept == off
    assert doubted.confidence == "amber"
    assert doubted.reasons == ("not simulated, and the formulas are +22% off for 2P1D tp1/tp1",)


def test_difference():
    assert math.isnan(difference(ROW))
    assert difference(with_check(ROW, simulated(20.0))) == pytest.approx(0.1)
    assert difference(with_check(ROW, simulated(0.0))) == math.inf
