"""Which deployment comes first, and what is said when none does."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
from analysis_helpers import make_problem

from fluidserve.errors import InputError, NoFeasibleDeployment
from fluidserve.search import plan as planning
from fluidserve.search.grid import disaggregated_grid
from fluidserve.search.plan import TIE, analyse, rank
from fluidserve.search.score import question_of, score_grid
from fluidserve.specs.applications import synthetic_workload
from fluidserve.specs.deployment import parse_label
from fluidserve.timing.profile import load_profile

CHAT = make_problem(link=25e9)
plan = functools.partial(planning.plan, kinds=("disaggregated",))
BUDGET = 10


@functools.cache
def everything():
    grid = disaggregated_grid(CHAT, BUDGET)
    return grid, score_grid(grid, question_of(CHAT)).goodput


@functools.cache
def planned(rate=None, top=10):
    return plan(CHAT, budget=BUDGET, rate=rate, top=top)


def test_most_goodput_first():
    grid, goodput = everything()
    found = planned()
    best = found.deployments[0]
    assert best.goodput >= goodput.max() * (1 - TIE)
    assert best.goodput == pytest.approx(goodput[best_row(grid, best)])
    rates = [d.goodput for d in found.deployments]
    assert all(b <= a * (1 + TIE) for a, b in itertools.pairwise(rates))
    assert found.candidates == len(grid)
    assert len(found.deployments) == 10


def best_row(grid, result):
    return next(i for i in range(len(grid)) if grid.deployment(i) == result.deployment)


def test_ties_go_to_fewer_gpus():
    """Within 1 % the formulas cannot tell; a class of ties starts at its largest goodput."""
    goodput = np.array([10.0, 9.95, 9.91, 9.85, 0.0, 5.0, 5.0])
    gpus = np.array([8, 6, 4, 2, 1, 3, 2])
    assert rank(goodput, gpus, None).tolist() == [2, 1, 0, 3, 6, 5]


def test_classes_of_ties_do_not_chain():
    goodput = np.array([100.0, 99.5, 98.6, 98.0])
    gpus = np.array([9, 8, 1, 2])
    assert rank(goodput, gpus, None).tolist() == [1, 0, 2, 3]


def test_with_a_rate_fewest_gpus_that_reach_it():
    goodput = np.array([10.0, 12.0, 30.0, 9.9, 12.5])
    gpus = np.array([4, 4, 8, 2, 6])
    assert rank(goodput, gpus, 10.0).tolist() == [1, 0, 4, 2]
    assert rank(goodput, gpus, 31.0).tolist() == []


def test_a_plan_for_a_rate():
    grid, goodput = everything()
    rate = 0.6 * goodput.max()
    found = planned(rate)
    enough = goodput >= rate
    assert found.deployments[0].gpus == grid.gpus[enough].min()
    assert all(d.goodput >= rate for d in found.deployments)
    assert all(d.rate == rate for d in found.deployments)
    gpus = [d.gpus for d in found.deployments]
    assert gpus == sorted(gpus)
    cheapest = grid.gpus == grid.gpus[enough].min()
    assert found.deployments[0].goodput == pytest.approx(goodput[enough & cheapest].max())


def test_numbers_belong_to_the_rate():
    """Headroom shows: below the goodput, more requests meet the SLO than must."""
    rate = 0.6 * float(everything()[1].max())
    for row in planned(rate).deployments:
        assert row.attainment >= 0.9 - 1e-6
        assert row.ttft.p50 <= row.ttft.p90 <= row.ttft.p99
        assert row.tpot.p50 <= row.tpot.p90 <= row.tpot.p99
    for row in planned().deployments:
        assert row.rate == row.goodput
        assert row.attainment == pytest.approx(0.9, abs=2e-3)


def test_idle_gpus_are_not_hidden():
    """A deployment counts the GPUs it uses; the budget stays visible beside it."""
    found = planned()
    for row in found.deployments:
        pools = row.deployment.prefill, row.deployment.decode
        assert row.gpus == sum(p.replicas * p.tp * p.pp for p in pools) <= BUDGET
        assert row.goodput_per_gpu == pytest.approx(row.goodput / row.gpus)
    assert found.budget == BUDGET
    assert any(row.gpus < BUDGET for row in planned(top=100).deployments)


def test_ties_are_marked():
    first, *others = planned(top=100).deployments
    assert first.tied
    for row in others:
        low, high = sorted((row.goodput, first.goodput))
        assert row.tied == (low >= (1 - TIE) * high)
    assert any(not row.tied for row in others)


def test_one_deployment_analysed():
    deployment = parse_label("3P2D tp1/tp1", gpu=CHAT.gpu.name)
    at_goodput = analyse(CHAT, deployment, None)
    assert at_goodput.rate == at_goodput.goodput > 0
    grid, goodput = everything()
    assert at_goodput.goodput == pytest.approx(goodput[best_row(grid, at_goodput)], rel=1e-6)
    slower = analyse(CHAT, deployment, 0.5 * at_goodput.goodput)
    assert slower.attainment > at_goodput.attainment
    assert slower.ttft.p90 < at_goodput.ttft.p90
    over = analyse(CHAT, deployment, 3 * at_goodput.goodput)
    assert over.attainment == 0.0
    assert over.ttft.mean == np.inf


def test_weights_that_do_not_fit():
    problem = make_problem("OPT-175B", ttft=4.0, tpot=0.2)
    with pytest.raises(NoFeasibleDeployment, match="does not fit twice into 8") as caught:
        plan(problem, budget=8)
    assert caught.value.reasons["the weights do not fit into the memory"] > 0
    assert "the budget is 8" in caught.value.nearest
    assert "OPT-175B needs" in caught.value.nearest


def test_one_instance_that_fits_but_not_two():
    problem = make_problem("OPT-66B", ttft=2.5, tpot=0.15)
    with pytest.raises(NoFeasibleDeployment) as caught:
        plan(problem, budget=3)
    assert "a prefill and a decode instance 4 GPUs; the budget is 3" in caught.value.nearest


def test_a_model_that_fits_nowhere():
    small = dataclasses.replace(CHAT.gpu, memory=1e7, usable_memory=1e7)
    with pytest.raises(NoFeasibleDeployment) as caught:
        plan(dataclasses.replace(CHAT, gpu=small), budget=8)
    assert caught.value.nearest.startswith("OPT-13B does not fit on")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"ttft": 1e-3}, "ttft unreachable"), ({"tpot": 1e-3}, "tpot unreachable")],
)
def test_a_limit_out_of_reach(changes, reason):
    problem = make_problem(link=25e9, **changes)
    with pytest.raises(NoFeasibleDeployment, match="however little traffic") as caught:
        plan(problem, budget=4)
    assert caught.value.reasons == {reason: len(disaggregated_grid(problem, 4))}
    assert "idle: P90 TTFT" in caught.value.nearest
    assert "P90 TPOT" in caught.value.nearest


def test_a_rate_out_of_reach():
    with pytest.raises(NoFeasibleDeployment, match="serves 1e\\+06 requests/s") as caught:
        plan(CHAT, budget=4, rate=1e6)
    grid = disaggregated_grid(CHAT, 4)
    goodput = score_grid(grid, question_of(CHAT)).goodput
    assert caught.value.reasons["goodput below the rate"] == (goodput > 0).sum()
    assert sum(caught.value.reasons.values()) == len(grid)
    assert caught.value.nearest.startswith(grid.deployment(int(goodput.argmax())).label)


@pytest.mark.parametrize("budget", [-1, 0, 1])
def test_a_budget_below_two(budget):
    with pytest.raises(InputError, match="needs at least 2 GPUs"):
        plan(CHAT, budget=budget)


def test_single_token_traffic_is_planned_by_ttft_alone():
    problem = make_problem(workload=synthetic_workload(512, 1), ttft=0.4)
    best = plan(problem, budget=4).deployments[0]
    assert best.deployment.decode.gpus == 1
    assert best.deployment.prefill.gpus == 3
    assert best.tpot.mean == np.inf


def test_the_profile_decides_where_the_first_token_leaves():
    assert load_profile("paper").first_token == "prefill"
    later = make_problem(link=5e9, ttft=0.6, first_token="decode")
    sooner = make_problem(link=5e9, ttft=0.6, first_token="prefill")
    a, b = (plan(p, budget=3).deployments[0] for p in (later, sooner))
    assert a.ttft.p50 > b.ttft.p50
