"""Pairs scored out of tables against the same pairs scored by themselves."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest
from analysis_helpers import make_problem

from fluidserve.errors import InputError
from fluidserve.search.grid import disaggregated_grid
from fluidserve.search.pairs import attainment_of_all, goodput_of_pairs
from fluidserve.search.score import describe_rows, question_of, score_grid
from fluidserve.search.tables import place_of, pools_of, tables_of, tabulates
from fluidserve.specs.slo import Slo

BUDGET = 10
CASES = {
    "chat": {"link": 25e9},
    "slow link": {"link": 3e9, "ttft": 0.6},
    "llama": {
        "model": "Llama-3.1-8B",
        "gpu": "A100-SXM4-80GB",
        "ttft": 0.3,
        "tpot": 0.02,
    },
}


@pytest.mark.parametrize("name", CASES)
def test_goodput_out_of_tables_is_that_of_the_formulas(name):
    """Interpolation costs at most half a per cent of goodput, and mostly far less."""
    problem = make_problem(**CASES[name])
    grid = disaggregated_grid(problem, BUDGET)
    question = question_of(problem)
    pools = pools_of(grid.shapes, BUDGET)
    prefill = place_of(pools, grid.prefill, grid.n_prefill)
    decode = place_of(pools, grid.decode, grid.n_decode)
    assert (pools.shape[prefill] == grid.prefill).all()
    assert (pools.count[prefill] == grid.n_prefill).all()
    tables = tables_of(grid, question, pools)
    found = goodput_of_pairs(tables, prefill, decode)
    exact = score_grid(grid, question).goodput
    assert ((found > 0) == (exact > 0)).mean() > 0.99
    both = (found > 0) & (exact > 0)
    error = np.abs(found[both] / exact[both] - 1.0)
    assert np.median(error) < 5e-4
    assert np.quantile(error, 0.99) < 5e-3

    rate = 0.5 * float(np.max(exact))
    everything = np.arange(len(grid))
    asked = describe_rows(grid, question, everything, np.full(len(grid), rate)).asked
    shares = np.asarray(attainment_of_all(tables, jnp.asarray(rate)))[prefill, decode]
    gap = np.abs(shares - asked.attainment)
    near = asked.attainment > 0.8  # nodes lie where attainment is near the target, not below
    assert near.sum() > 10
    assert gap[near].max() < 5e-3
    assert gap.max() < 0.1


@pytest.mark.parametrize(
    "other",
    [
        {"slo": Slo(ttft=1.0, e2e=10.0)},
        {"slo": Slo(ttft=1.0, ttft_share=0.9, tpot=0.1)},
        {"horizon": 100.0},
        {"users": 10.0},
        {"prefill_batch": 4},
    ],
)
def test_a_question_that_tables_do_not_hold_is_refused(other):
    problem = make_problem()
    grid, question = disaggregated_grid(problem, 4), question_of(problem)
    assert tabulates(question)
    question = dataclasses.replace(question, **other)
    assert not tabulates(question)
    with pytest.raises(InputError, match="use score_grid"):
        tables_of(grid, question, pools_of(grid.shapes, 4))


def test_limits_may_be_missing():
    """A promise without one limit is a promise with a limit that everything meets."""
    problem = make_problem(link=25e9)
    grid = disaggregated_grid(problem, 4)
    pools = pools_of(grid.shapes, 4)
    found = []
    for tpot in (math.inf, 1e6):
        slo = dataclasses.replace(problem.slo, tpot=tpot)
        question = dataclasses.replace(question_of(problem), slo=slo)
        tables = tables_of(grid, question, pools)
        every = np.arange(len(pools.shape))
        found.append(goodput_of_pairs(tables, every, every))
    np.testing.assert_allclose(*found, rtol=1e-9)
    assert (found[0] > 0).any()
