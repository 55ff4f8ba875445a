"""Where the time of a request goes, and what a failure costs."""

import dataclasses

import numpy as np
import pytest
from analysis_helpers import make_problem

from fluidserve.eventsim import simulate
from fluidserve.search.plan import analyse, plan
from fluidserve.specs.applications import synthetic_workload
from fluidserve.specs.deployment import parse_label

PLANS = plan(make_problem(link=25e9), budget=8, top=6, kinds=("disaggregated",)).deployments


def label(text: str):
    return parse_label(text, gpu="A100-SXM4-80GB")


@pytest.mark.parametrize("row", PLANS[:3], ids=lambda r: r.deployment.label)
def test_after_one_failure_is_the_worse_of_the_two_smaller_deployments(row):
    problem, pools = make_problem(link=25e9), row.deployment
    left = []
    for role in ("prefill", "decode"):
        pool = getattr(pools, role)
        if pool.replicas == 1:
            left.append(0.0)
            continue
        smaller = dataclasses.replace(pool, replicas=pool.replicas - 1)
        fewer = dataclasses.replace(pools, **{role: smaller})
        left.append(analyse(problem, fewer, 1.0).goodput)
    assert row.after_one_failure == pytest.approx(min(left), rel=1e-5)
    assert row.after_one_failure < row.goodput


def test_a_single_instance_leaves_nothing():
    row = analyse(make_problem(), label("1P2D tp1/tp1"), None)
    assert row.after_one_failure == 0.0


@pytest.mark.parametrize("first_token", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("deployment", "rate"),
    [("2P1D tp1/tp1", 5.0), ("1P2D tp2pp2/tp1", 6.0), ("3P2D tp1/tp1pp2", 9.0)],
)
def test_phases_add_up_and_agree_with_the_simulator(deployment, rate, first_token):
    """Means by phase within 4 % of the time of a request, and in total within 2 %."""
    problem = make_problem(link=25e9, first_token=first_token)
    row = analyse(problem, label(deployment), rate)
    system = problem.system(label(deployment))
    runs = [
        simulate(system, problem.workload, rate, requests=8000, seed=s).window() for s in range(3)
    ]
    total = np.mean([np.mean(r.last_token - r.arrival) for r in runs])
    for name, time in dataclasses.asdict(row.phases).items():
        simulated = np.mean([r.phases()[name] for r in runs])
        assert time == pytest.approx(simulated, abs=float(0.04 * total)), name
    assert sum(dataclasses.astuple(row.phases)) == pytest.approx(total, rel=0.02)
    by_phase = [sum(r.phases().values()) for r in runs]
    assert np.mean(by_phase) == pytest.approx(total, rel=1e-9)


def test_phases_of_single_tokens_end_with_prefill():
    problem = make_problem(workload=synthetic_workload(512, 1), first_token="prefill")
    row = analyse(problem, label("1P1D tp1/tp1"), 2.0)
    assert (row.phases.handover, row.phases.first_step, row.phases.decode) == (0.0, 0.0, 0.0)
    assert row.phases.queue + row.phases.prefill == pytest.approx(row.ttft.mean, rel=1e-5)


def test_overload_has_no_phases():
    row = analyse(make_problem(), label("1P1D tp1/tp1"), 1e3)
    assert not np.isfinite(dataclasses.astuple(row.phases)).any()
