"""The candidates of a question: all of them, once each, within the budget, and why not others."""

import dataclasses
import itertools

import numpy as np
import pytest
from analysis_helpers import make_problem
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidserve.errors import InputError
from fluidserve.search.grid import (
    MAX_CANDIDATES,
    MAX_SHAPES,
    disaggregated_grid,
    fitting_shapes,
    misfit,
    powers_of_two,
    smallest_fit,
)
from fluidserve.specs.applications import synthetic_workload
from fluidserve.specs.deployment import parse_label

CHAT = make_problem()
LARGE = make_problem("OPT-66B", ttft=2.5, tpot=0.15)


def rows(grid):
    return list(zip(grid.prefill, grid.decode, grid.n_prefill, grid.n_decode, strict=True))


@pytest.mark.parametrize("problem", [CHAT, LARGE], ids=["13B", "66B"])
@pytest.mark.parametrize("budget", [2, 3, 8, 13, 32])
def test_every_combination_once_within_the_budget(problem, budget):
    """Counted by brute force over all instance counts."""
    grid = disaggregated_grid(problem, budget)
    sizes = [shape.gpus for shape in grid.shapes]
    expected = {
        (i, j, n, k)
        for (i, p), (j, d) in itertools.product(enumerate(sizes), repeat=2)
        for n in range(1, budget + 1)
        for k in range(1, budget + 1)
        if n * p + k * d <= budget
    }
    found = rows(grid)
    assert len(set(found)) == len(found) == len(grid)
    assert set(found) == expected
    assert (grid.gpus <= budget).all()


def test_gpus_are_the_sum_over_the_pools_of_every_row():
    grid = disaggregated_grid(CHAT, 12)
    for i in range(len(grid)):
        deployment = grid.deployment(i)
        pools = (deployment.prefill, deployment.decode)
        assert grid.gpus[i] == sum(p.replicas * p.tp * p.pp for p in pools) == deployment.gpus


def test_odd_budgets_are_used_up():
    for budget in (3, 7, 11):
        assert disaggregated_grid(CHAT, budget).gpus.max() == budget


def test_shapes_of_a_model_that_fits_on_one_gpu():
    shapes, rejected = fitting_shapes(CHAT, 1000)
    assert {(s.tp, s.pp) for s in shapes} == {
        (tp, pp) for tp in (1, 2, 4, 8) for pp in (1, 2, 4, 8, 16, 32)
    }
    assert not rejected
    sizes = [s.gpus for s in shapes]
    assert sizes == sorted(sizes)
    assert len(shapes) <= MAX_SHAPES


def test_shapes_too_small_for_the_weights():
    shapes, rejected = fitting_shapes(LARGE, 9)
    assert min(s.gpus for s in shapes) == 2
    assert rejected == {"the weights do not fit into the memory": 1}
    assert smallest_fit(LARGE).gpus == 2


def test_heads_that_tp_does_not_divide():
    """36 heads: tp 8 does not divide them."""
    model = dataclasses.replace(CHAT.model, heads=36)
    shapes, rejected = fitting_shapes(dataclasses.replace(CHAT, model=model), 17)
    assert {s.tp for s in shapes} == {1, 2, 4}
    assert rejected["tp=8 does not divide 36 attention heads"] >= 1
    problem = dataclasses.replace(CHAT, model=model)
    reason = misfit(problem, problem.instance(8, 1), tp=8, pp=1)
    assert reason == "tp=8 does not divide 36 attention heads"


def test_the_longest_request_must_fit():
    problem = make_problem(workload=synthetic_workload(50_000, 20_000))
    _, rejected = fitting_shapes(problem, 3)
    assert rejected["the KV of the longest request does not fit beside the weights"] == 1
    assert smallest_fit(problem).gpus == 2


def test_misfits_of_a_given_shape():
    instance = CHAT.instance(1, 1)
    assert misfit(CHAT, instance, tp=1, pp=41) == "pp=41 exceeds 40 layers"
    assert misfit(CHAT, instance, tp=10, pp=1) == "tp=10 exceeds the 8 GPUs of a node"
    assert misfit(CHAT, instance, tp=1, pp=1) == ""


def test_a_single_deployment():
    deployment = parse_label("3P2D tp2/tp4", gpu=CHAT.gpu.name)
    grid = disaggregated_grid(CHAT, 1, only=deployment)
    assert len(grid) == 1
    assert grid.deployment(0) == deployment
    assert grid.gpus[0] == 14
    none = disaggregated_grid(LARGE, 99, only=parse_label("1P1D tp1/tp4", gpu=LARGE.gpu.name))
    assert len(none) == 0
    assert none.rejected["the weights do not fit into the memory"] == 1


def test_stacked_shapes_repeat_the_last():
    grid = disaggregated_grid(LARGE, 9)
    stacked = grid.stacked()
    assert stacked.pp.shape == (MAX_SHAPES,)
    assert stacked.kv_capacity[0] == grid.shapes[0].instance.kv_capacity
    assert (stacked.pp[len(grid.shapes) :] == grid.shapes[-1].pp).all()


def test_budgets_beyond_one_call():
    with pytest.raises(InputError, match=r"at most 1,048,576 are compared at once"):
        disaggregated_grid(CHAT, 4096)
    assert len(disaggregated_grid(CHAT, 128)) < MAX_CANDIDATES


@settings(deadline=None, max_examples=30)
@given(budget=st.integers(0, 24))
def test_a_larger_budget_holds_all_of_a_smaller_one(budget):
    small, large = (disaggregated_grid(CHAT, b) for b in (budget, budget + 1))
    labels = {small.deployment(i).label for i in range(len(small))}
    assert labels <= {large.deployment(i).label for i in range(len(large))}
    assert len(small) == 0 or len(large) > len(small)
    assert np.all(small.gpus <= budget)


def test_powers_of_two():
    assert powers_of_two(0) == []
    assert powers_of_two(1) == [1]
    assert powers_of_two(8) == [1, 2, 4, 8]
    assert powers_of_two(40) == [1, 2, 4, 8, 16, 32]
