"""Deployments in a closed loop: against the event simulator, and where the answer is known."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from analysis_helpers import make_problem, quick_jit

from fluidserve.deploy.closed_loop import closed_state
from fluidserve.deploy.closed_score import closed_score
from fluidserve.deploy.disaggregated import metrics_of, prepare
from fluidserve.deploy.latency import STEPS
from fluidserve.eventsim import closed_window, simulate_closed, summarise
from fluidserve.problem import Problem
from fluidserve.search.score import as_arrays
from fluidserve.specs.applications import synthetic_workload
from fluidserve.specs.deployment import parse_label
from fluidserve.specs.slo import Slo
from fluidserve.status import Binding, Doubt
from fluidserve.testing import assert_no_nan
from fluidserve.timing.instance import System


@quick_jit
def solve(system, bins, slo, users):
    found = closed_score(prepare(system, bins), slo, users, STEPS)
    return found.throughput, found.metrics, found.latencies, found


def formulas(problem: Problem, label: str, users: int, system: System | None = None):
    system = system or problem.system(parse_label(label, gpu=problem.gpu.name))
    return solve(*as_arrays((system, problem.bins, problem.slo, float(users))))


def simulated(problem: Problem, label: str, users: int, requests: int):
    system = problem.system(parse_label(label, gpu=problem.gpu.name))
    records = simulate_closed(system, problem.workload, users, requests=requests, seed=1)
    return summarise(records, problem.slo, users=users, **closed_window(users, requests))


CODE = {"workload": "code-completion", "first_token": "decode"}
SLOTS = {"workload": "summarization", "max_batch": 8}
CASES = [
    # problem, deployment, users; allowed errors of throughput, mean and P90 TTFT, TPOT
    ({}, "1P1D tp1/tp4", 4, 0.01, 0.03, 0.05, 0.02),
    ({}, "1P1D tp1/tp4", 80, 0.01, 0.02, 0.03, 0.02),
    ({}, "4P1D tp1/tp4", 80, 0.015, 0.03, 0.05, 0.02),
    (CODE, "1P2D tp1/tp1", 40, 0.01, 0.04, 0.06, 0.02),
    (SLOTS, "2P1D tp1/tp1", 40, 0.01, 0.05, 0.2, 0.04),
]


@pytest.mark.parametrize(("changes", "label", "users", "rate", "ttft", "p90", "tpot"), CASES)
def test_formulas_agree_with_the_simulator(changes, label, users, rate, ttft, p90, tpot):
    problem = make_problem(**changes)
    found = simulated(problem, label, users, 8000)
    throughput, _, times, _ = formulas(problem, label, users)
    assert float(throughput) == pytest.approx(found.throughput, rel=rate)
    assert float(times.ttft_mean) == pytest.approx(found.ttft.mean, rel=ttft)
    assert float(times.ttft[1]) == pytest.approx(found.ttft.p90, rel=p90)
    assert float(times.tpot_mean) == pytest.approx(found.tpot.mean, rel=tpot)


def test_one_user_meets_nobody():
    problem = make_problem(workload=synthetic_workload(512, 100))
    found = simulated(problem, "2P2D tp1/tp1", 1, 200)
    rate, metrics, times, _ = formulas(problem, "2P2D tp1/tp1", 1)
    assert float(times.ttft_mean) == pytest.approx(found.ttft.mean, rel=1e-3)
    assert float(times.tpot_mean) == pytest.approx(found.tpot.mean, rel=0.01)
    assert float(rate) == pytest.approx(found.throughput, rel=0.01)
    assert float(metrics.attainment) == pytest.approx(1.0)


@pytest.mark.parametrize("users", [50, 100, 250])
def test_crowd_before_one_prefill_server(users):
    """The measured case of one prefill server of 100 ms: 5, 10 and 25 s to the first token."""
    problem = make_problem(workload=synthetic_workload(700, 4), ttft=1.0)
    system = problem.system(parse_label("1P1D tp1/tp1", gpu=problem.gpu.name))
    rate, metrics, times, found = formulas(problem, "1P1D tp1/tp1", users)
    service = 1.0 / float(rate)
    assert 0.09 < service < 0.11
    in_decode = float(metrics.batch) + float(rate) * system.handover_overhead
    assert float(times.ttft_mean) == pytest.approx((users - in_decode) * service, rel=0.01)
    assert float(times.ttft_mean) == pytest.approx(users * service, rel=0.03)
    # nearly all wait as long as the mean
    assert float(times.ttft[2] / times.ttft[0]) < 1.2
    assert int(found.binding) == Binding.TTFT
    assert float(found.goodput) == 0.0


def test_throughput_grows_with_users_up_to_the_first_full_stage():
    problem = make_problem()
    rates = [float(formulas(problem, "2P1D tp1/tp4", n)[0]) for n in (1, 3, 10, 30, 100, 1000)]
    assert all(b >= a * (1 - 1e-4) for a, b in itertools.pairwise(rates))
    assert rates[1] == pytest.approx(3 * rates[0], rel=0.1)
    _, metrics, _, found = formulas(problem, "2P1D tp1/tp4", 1000)
    assert float(metrics.prefill_load) == pytest.approx(1.0, abs=2e-3)
    loose = dataclasses.replace(problem, slo=Slo(ttft=1e3, tpot=1.0, attainment=0.9))
    found = formulas(loose, "2P1D tp1/tp4", 1000)[3]
    assert int(found.binding) == Binding.PREFILL_CAPACITY
    assert float(found.goodput) == pytest.approx(rates[-1])
    alone = formulas(loose, "2P1D tp1/tp4", 2)[3]
    assert int(alone.binding) == Binding.USERS


def test_single_tokens_only_pass_prefill():
    problem = make_problem(workload=synthetic_workload(512, 1))
    few = formulas(problem, "4P1D tp1/tp1", 3)
    many = formulas(problem, "4P1D tp1/tp1", 12)
    assert float(few[0]) == pytest.approx(3 / float(few[2].ttft_mean), rel=1e-3)
    assert float(many[0]) == pytest.approx(4 / 3 * float(few[0]), rel=1e-3)
    assert float(many[2].ttft_mean) == pytest.approx(3 * float(few[2].ttft_mean), rel=0.02)


def test_doubts_say_where_it_is_weak():
    equal = make_problem(workload=synthetic_workload(512, 64))
    assert int(formulas(equal, "1P1D tp1/tp1", 8)[3].doubts) & Doubt.ALIKE
    batched = make_problem(prefill_batch=4)
    assert int(formulas(batched, "1P1D tp1/tp4", 8)[3].doubts) & Doubt.OTHER_PREFILL
    slots = make_problem(max_batch=4, ttft=100.0, tpot=100.0)
    doubts = int(formulas(slots, "2P1D tp1/tp1", 32)[3].doubts)
    assert doubts & Doubt.SLOT_WAIT
    assert doubts & Doubt.FEW_SLOTS
    loose = make_problem(ttft=100.0, tpot=100.0)
    assert int(formulas(loose, "2P1D tp1/tp1", 8)[3].doubts) == Doubt.NONE


def test_batch_of_deployments_has_no_nan_and_finite_gradients():
    problem = make_problem(first_token="decode")
    systems = [
        problem.system(parse_label(label, gpu=problem.gpu.name))
        for label in ("1P1D tp1/tp1", "7P2D tp1pp2/tp2", "1P9D tp4/tp1pp4")
    ]
    stacked = jax.tree.map(lambda *x: np.asarray(x, float), *systems)
    system, bins, slo = as_arrays((stacked, problem.bins, problem.slo))
    one = jnp.ones(3)

    @quick_jit
    def slopes(users):
        def attained(limit, bandwidth):
            plan = prepare(dataclasses.replace(system, link_bandwidth=bandwidth), bins)
            state, rate = closed_state(plan, users)
            limits = dataclasses.replace(slo, ttft=limit)
            return metrics_of(plan, limits, rate, state).attainment, rate, state

        return jax.jvp(attained, (0.2 * one, 1e10 * one), (one, 1e10 * one))

    for users in (1.0, 17.0, 100_000.0):
        values, growth = slopes(users * one)
        assert_no_nan((values, growth))
        assert (np.asarray(values[1]) > 0.0).all()
        if users == 17.0:  # more time and a faster link help
            assert (np.asarray(growth[0]) > 0.0).all()
            assert (np.asarray(growth[1]) > 0.0).all()


def test_full_link_holds_the_users_up():
    problem = make_problem("OPT-13B", link=2e9, first_token="decode", ttft=1.0)
    rate, metrics, times, found = formulas(problem, "4P1D tp1/tp4", 60)
    mean_in, mean_out = problem.mean_lengths
    most = 2e9 / (problem.model.kv_bytes_per_token * mean_in)
    assert float(rate) == pytest.approx(most, rel=0.01)
    assert 0.9 < float(metrics.link_load) < 1.0
    stay = float(times.ttft_mean) + (mean_out - 1.0) * float(times.tpot_mean)
    assert float(rate) * stay == pytest.approx(60.0, rel=0.1)
    assert int(found.doubts) & Doubt.FULL_LINK
    assert 0.0 <= float(metrics.attainment) < 0.5
