"""All kinds of deployments in one plan, refined by requests that were served."""

import dataclasses
import functools

import numpy as np
import pytest
from analysis_helpers import make_problem

from fluidserve.errors import InputError, NoFeasibleDeployment
from fluidserve.eventsim import goodput
from fluidserve.search.aggregated import AggregatedGrid, aggregated_grid
from fluidserve.search.plan import analyse, grids_of, kinds_of, plan
from fluidserve.search.refine import refine
from fluidserve.search.score import question_of, score_grid
from fluidserve.specs.applications import synthetic_workload
from fluidserve.specs.deployment import parse_label

CHAT = make_problem()
BUDGETS = (512, 2048)


@functools.cache
def planned(budget=4, **kwargs):
    return plan(CHAT, budget=budget, token_budgets=BUDGETS, **kwargs)


def test_a_plan_has_the_best_of_each_kind():
    found = planned()
    assert set(found.best_of_kind) == {"disaggregated", "colocated", "chunked"}
    assert all(row.kind == kind for kind, row in found.best_of_kind.items())
    best = max(row.goodput for row in found.best_of_kind.values())
    assert found.deployments[0].goodput >= 0.99 * best
    assert found.candidates == sum(len(g) for g in grids_of(CHAT, 4, None, BUDGETS).values())


def test_a_single_kind_is_that_kind_alone():
    found = planned(kinds=("chunked",))
    assert {row.kind for row in found.deployments} == {"chunked"}
    assert list(found.best_of_kind) == ["chunked"]
    assert {row.deployment.token_budget for row in found.deployments} <= set(BUDGETS)


def test_one_gpu_is_enough_without_pools():
    found = planned(budget=1)
    assert set(found.best_of_kind) <= {"colocated", "chunked"}
    with pytest.raises(InputError, match="at least 2 GPUs"):
        plan(CHAT, budget=1, kinds=("disaggregated",))


def test_the_fewest_gpus_are_looked_for_over_all_kinds():
    found = planned(rate=6.0)
    rows = [row for row in found.deployments if row.goodput >= 6.0]
    assert rows == found.deployments
    assert rows[0].gpus == min(row.gpus for row in found.best_of_kind.values())


def test_closed_loops_have_formulas_for_pools_only():
    problem = make_problem(
        workload=dataclasses.replace(synthetic_workload(500, 100), concurrency=4)
    )
    assert kinds_of(problem) == ("disaggregated",)
    with pytest.raises(InputError, match="chunked: a closed loop and a horizon"):
        plan(problem, budget=4, kinds=("chunked",))
    with pytest.raises(InputError, match="1C tp1: a closed loop and a horizon"):
        analyse(problem, parse_label("1C tp1", gpu=CHAT.gpu.name), None)


def test_every_kind_says_why_it_has_no_answer():
    hopeless = make_problem(ttft=1e-4)
    with pytest.raises(NoFeasibleDeployment) as error:
        plan(hopeless, budget=2, token_budgets=BUDGETS)
    for kind in ("disaggregated", "colocated", "chunked"):
        assert any(reason.startswith(f"{kind}: ") for reason in error.value.reasons)
        assert f"{kind}: " in error.value.nearest


@pytest.mark.parametrize(
    ("label", "requests"),
    [
        *(("1C tp2", 4000), ("1S tp2 b512", 4000), ("1S tp2 b2048", 4000)),
        *(("2C tp1", 6000), ("4S tp2 b512", 6000), ("2S tp2 b2048", 6000)),
    ],
)
def test_refined_goodputs_are_those_of_the_simulator(label, requests):
    """What the refining tier is for: 4 % in all but one of ten, with all instances of the best."""
    row = analyse(CHAT, parse_label(label, gpu=CHAT.gpu.name), None)
    assert row.refined is not None
    simulated = goodput(
        CHAT.system(row.deployment),
        CHAT.workload,
        CHAT.slo,
        guess=row.goodput,
        requests=requests,
        seeds=range(3),
    )
    assert row.goodput == pytest.approx(simulated.value, rel=0.04)
    assert not any("closed formulas" in reason for reason in row.reasons)


def test_instances_that_are_not_on_top_share_a_factor():
    grid = aggregated_grid(CHAT, "chunked", 4, token_budgets=BUDGETS)
    question = question_of(CHAT)
    scores = score_grid(grid, question)
    goodput_ = np.asarray(scores.goodput, float)

    def ranked(values):
        return np.argsort(-values, kind="stable")

    found = refine(CHAT, grid, question, goodput_, ranked)
    refined = found.applied(scores)
    np.testing.assert_allclose(refined.goodput, scores.goodput * found.factor)
    pairs = np.stack([grid.shape, grid.token_budget], axis=1)
    _, inverse = np.unique(pairs, axis=0, return_inverse=True)
    own = 0
    for i in range(inverse.max() + 1):
        different = len(np.unique(found.factor[inverse == i]))
        own += different - 1
    assert 1 <= own <= 6, "two rounds of three"


def test_rates_of_a_refined_row_are_scaled_alike():
    """At its goodput a row meets the SLO just so, whatever the factor."""
    row = analyse(CHAT, parse_label("1S tp2 b2048", gpu=CHAT.gpu.name), None)
    assert row.rate == row.goodput
    assert row.attainment == pytest.approx(0.9, abs=2e-3)
    slower = analyse(CHAT, row.deployment, 0.8 * row.goodput)
    assert slower.goodput == pytest.approx(row.goodput, rel=1e-6)
    assert slower.attainment > row.attainment


def test_pipelines_on_top_are_served_one_by_one():
    """Engines with several stages are not sampled, so the event simulator has its say."""
    row = analyse(CHAT, parse_label("1S tp2pp2 b1024", gpu=CHAT.gpu.name), None)
    assert row.refined is not None
    assert row.refined.error == 0.0


def test_large_batches_of_pipelines_have_time_to_fill():
    """Some 600 requests decode at once; 1,000 requests showed 16 % more than goes on serving."""
    row = analyse(CHAT, parse_label("1S tp4pp2 b2048", gpu=CHAT.gpu.name), None)
    assert row.batch > 500.0
    simulated = goodput(
        CHAT.system(row.deployment),
        CHAT.workload,
        CHAT.slo,
        guess=row.goodput,
        requests=20_000,
        seeds=range(2),
    )
    assert row.goodput == pytest.approx(simulated.value, rel=0.05)


def test_an_instance_that_does_not_fit_leaves_no_candidates():
    large = make_problem("OPT-66B")
    grid = aggregated_grid(large, "chunked", 1)
    assert isinstance(grid, AggregatedGrid)
    assert not len(grid)
    with pytest.raises(NoFeasibleDeployment, match="does not fit into 1"):
        plan(large, budget=1)


@pytest.mark.parametrize("label", ["2C tp1", "2S tp1 b1024"])
def test_windows_are_followed_and_not_sampled(label):
    """Sampled engines keep every token, so a model with windows goes through the simulator."""
    problem = make_problem("gpt-oss-20b", "H100-SXM", profile="default", tpot=0.03)
    row = analyse(problem, parse_label(label, gpu=problem.gpu.name), None)
    assert row.goodput > 0
    assert row.attainment >= 0.895
    assert row.refined is not None
    assert row.refined.error == 0.0


def test_the_kv_policy_reaches_the_formulas():
    """Admission with room for the prompt lets more requests in than room for all tokens."""
    full = make_problem(ttft=5.0, kv_policy="preempt"), make_problem(ttft=5.0)
    goodputs = []
    for problem in full:
        grid = aggregated_grid(problem, "colocated", 1)
        goodputs.append(float(score_grid(grid, question_of(problem)).goodput.max()))
    assert goodputs[0] > 1.02 * goodputs[1]
