"""What sharing gains: two pairs of instances against twice one pair, by both paths."""

import jax.numpy as jnp
import pytest
from analysis_helpers import inputs_of, make_problem, plan_of, quick_jit

from fluidserve.deploy.disaggregated import evaluate
from fluidserve.eventsim import attainment, simulate
from fluidserve.specs.deployment import parse_label

RATE_PER_GPU = 1.8
MEETS = {"shared": True, "jsq": True, "round-robin": True, "random": False}


def by_formulas(problem, label, rate):
    slo = inputs_of(problem, label)[2]
    score = quick_jit(lambda plan, slo, rate: evaluate(plan, slo, rate, max_replicas=4).attainment)
    return float(score(plan_of(problem, label), slo, jnp.array(rate)))


def by_simulation(problem, label, rate):
    system = problem.system(parse_label(label, gpu=problem.gpu.name))
    records = simulate(system, problem.workload, rate, requests=6000, seed=1)
    return attainment(records.window(), problem.slo)


@pytest.mark.parametrize("path", [by_formulas, by_simulation])
def test_one_pair_cannot_carry_its_share(path):
    assert path(make_problem(), "1P1D tp1/tp1", 2 * RATE_PER_GPU) < 0.88


@pytest.mark.parametrize("rule", MEETS)
@pytest.mark.parametrize("path", [by_formulas, by_simulation])
def test_two_pairs_that_share_can(path, rule):
    """Split by chance they are no better than one pair; the other rules gain by looking."""
    share = path(make_problem(dispatch=rule), "2P2D tp1/tp1", 4 * RATE_PER_GPU)
    assert (share >= 0.9) == MEETS[rule]
    assert abs(share - 0.9) > 0.01
