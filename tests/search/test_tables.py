"""Pairs scored out of tables against the same pairs scored by themselves."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest
from analysis_helpers import make_problem, quick_jit

from fluidserve.errors import InputError
from fluidserve.search import pairs
from fluidserve.search import tables as tables_module
from fluidserve.search.grid import disaggregated_grid
from fluidserve.search.pairs import attainment_of_all, goodput_of_pairs
from fluidserve.search.score import question_of, score_grid
from fluidserve.search.tables import place_of, pools_of, tables_of, tabulates
from fluidserve.specs.slo import Slo
from fluidserve.status import confidence_level

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
    "first token from decode": {
        "model": "Llama-3.1-70B",
        "gpu": "H100-SXM",
        "profile": "default",
        "ttft": 0.5,
        "tpot": 0.05,
        "link": None,
    },
}
TRUSTED = {"chat": 5e-4, "slow link": 1e-3, "llama": 5e-4, "first token from decode": 5e-3}
"""Largest error of goodput where it is green or amber."""


@pytest.fixture(autouse=True, scope="module")
def quickly():
    """Programs that run once are compiled cheaply."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name, static in (
            (tables_module, "_build", "max_replicas"),
            (pairs, "_solve", ()),
        ):
            plain = getattr(module, name).__wrapped__
            patch.setattr(module, name, quick_jit(plain, static_argnames=static))
        patch.setattr(tables_module, "CHUNK", 32)
        patch.setattr(pairs, "CHUNK", 256)
        yield


@pytest.mark.parametrize("name", CASES)
def test_goodput_out_of_tables_is_that_of_the_formulas(name):
    """Interpolation costs at most half a per cent of a goodput that counts, and mostly far less."""
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
    scores = score_grid(grid, question)
    exact = scores.goodput
    assert ((found > 0) == (exact > 0)).mean() > 0.99
    both = (found > 0) & (exact > 0)
    error = np.where(both, np.abs(found / np.where(both, exact, 1.0) - 1.0), 0.0)
    trusted = both & np.array([confidence_level(int(d)) != "red" for d in scores.doubts])
    assert trusted.sum() > 20
    assert error[trusted].max() < TRUSTED[name]
    assert np.median(error[both]) < 2e-4
    assert np.quantile(error[both], 0.99) < 1e-2
    rolled = np.abs(np.roll(found[both], 1) / exact[both] - 1.0)
    assert rolled.max() > 0.01  # the comparison can fail

    for row in np.flatnonzero(trusted)[:: max(trusted.sum() // 12, 1)]:
        shares = attainment_of_all(tables, jnp.asarray(exact[row]))
        gap = abs(float(shares[prefill[row], decode[row]]) - scores.metrics.attainment[row])
        assert gap < 5e-3
    middle = float(np.median(exact[both]))
    shares = np.asarray(attainment_of_all(tables, jnp.asarray(middle)))[prefill, decode]
    told_apart = np.abs(exact / middle - 1.0) > 1e-2
    kept = shares >= float(problem.slo.attainment)
    assert (kept == (exact > middle))[told_apart].all()
    assert 0.2 < kept.mean() < 0.8


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
