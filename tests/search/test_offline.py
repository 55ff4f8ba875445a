"""Throughput without limits: formulas screen, the event simulator has the last word."""

import numpy as np
import pytest
from analysis_helpers import make_problem

from fluidserve.errors import InputError, NoFeasibleDeployment
from fluidserve.eventsim.offline import offline_throughput
from fluidserve.search.capacity import capacities
from fluidserve.search.offline import offline
from fluidserve.search.plan import grid_for, grids_of
from fluidserve.search.score import question_of, score_grid
from fluidserve.specs.applications import synthetic_workload
from fluidserve.specs.deployment import parse_label
from fluidserve.status import Binding

CHAT = make_problem()
FIXED = make_problem(workload=synthetic_workload(755, 200))
BUDGETS = (512, 2048)


def deployed(label, problem=FIXED):
    return parse_label(label, gpu=problem.gpu.name)


def simulated(label, problem=FIXED):
    system = problem.system(deployed(label, problem))
    return offline_throughput(system, problem.workload, requests=4000, seed=0)


def formula(label, problem=FIXED):
    rate, binding = capacities(grid_for(problem, deployed(label, problem)), question_of(problem))
    return float(rate[0]), Binding(int(binding[0]))


def test_a_full_prefill_pool_finishes_prompt_after_prompt():
    """With constant prompts nothing is random: one prompt each prefill time."""
    instance = FIXED.instance(1, 1)
    one = float(instance.times.stage_time(instance.prefill_work(755.0)))
    assert simulated("1P2D tp1/tp2") == pytest.approx(1.0 / one, rel=1e-3)
    assert formula("1P2D tp1/tp2") == (pytest.approx(1.0 / one, rel=1e-3), Binding.PREFILL_CAPACITY)


@pytest.mark.parametrize("label", ["2P1D tp2/tp1", "1C tp1", "2C tp2", "1S tp1 b512"])
def test_formulas_are_those_of_full_instances(label):
    assert formula(label, CHAT)[0] == pytest.approx(simulated(label, CHAT), rel=0.04)


def test_goodput_stays_below_what_fills_the_instances():
    question = question_of(FIXED)
    for grid in grids_of(FIXED, 4, None, BUDGETS).values():
        assert (
            np.asarray(score_grid(grid, question).goodput) <= capacities(grid, question)[0]
        ).all()


def test_pieces_finish_most_tokens_and_pools_fewest():
    """Where nobody waits for a token, a shared engine wastes least of the GPU."""
    found = offline(FIXED, grids_of(FIXED, 2, None, BUDGETS), budget=2, top=3)
    per_gpu = {kind: rows[0].token_rate_per_gpu for kind, rows in found.items()}
    assert per_gpu["chunked"] > 1.05 * per_gpu["colocated"] > 1.05 * per_gpu["disaggregated"]
    for rows in found.values():
        assert 1 <= len(rows) <= 3
        assert rows[0].rate >= 0.99 * max(row.rate for row in rows)
        assert all(row.gpus <= 2 for row in rows)


def test_replicas_multiply_one_instance():
    found = offline(FIXED, grids_of(FIXED, 3, ("colocated",)), budget=3)["colocated"]
    row = next(r for r in found if r.deployment.label == "3C tp1")
    alone = offline(FIXED, grids_of(FIXED, 1, ("colocated",)), budget=1)["colocated"][0]
    assert row.rate == pytest.approx(3.0 * alone.rate)
    assert row.rate == pytest.approx(simulated("3C tp1"), rel=0.03)


def test_what_cannot_be_asked():
    large = make_problem("OPT-66B")
    with pytest.raises(NoFeasibleDeployment, match="does not fit"):
        offline(large, grids_of(large, 1), budget=1)
    system = FIXED.system(deployed("1C tp1"))
    with pytest.raises(InputError, match="too few"):
        offline_throughput(system, FIXED.workload, requests=10, seed=0)
