"""Scores at given rates against the program of the search."""

import dataclasses

import jax
import numpy as np
import pytest
from analysis_helpers import make_problem, quick_jit

from fluidserve.errors import InputError
from fluidserve.search import rates, score
from fluidserve.search.grid import disaggregated_grid
from fluidserve.search.rates import attain_grid
from fluidserve.search.score import describe_rows, question_of
from fluidserve.status import Binding

PROBLEM = make_problem(link=25e9)


@pytest.fixture(autouse=True, scope="module")
def quickly():
    """Programs that run once are compiled cheaply."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name, static in (
            (rates, "_attain", "max_replicas"),
            (rates, "_prepare", "pipelines"),
            (score, "score", "max_replicas"),
        ):
            plain = getattr(module, name).__wrapped__
            patch.setattr(module, name, quick_jit(plain, static_argnames=static))
        yield


def grid_of(*, pipelines):
    """A grid, or the part of it whose prefill instances have one stage."""
    grid = disaggregated_grid(PROBLEM, 8)
    if pipelines:
        return grid
    single = np.array([s.pp == 1 for s in grid.shapes])[grid.prefill]
    fields = ("prefill", "decode", "n_prefill", "n_decode")
    return dataclasses.replace(grid, **{f: getattr(grid, f)[single] for f in fields})


@pytest.mark.parametrize("pipelines", [True, False])
def test_numbers_are_those_of_the_search(pipelines):
    """With and without what runs ahead in pipelines; float32 against float64."""
    grid, question = grid_of(pipelines=pipelines), question_of(PROBLEM)
    given = np.resize([1.0, 5.0, 20.0, 1e6], len(grid))
    expected = describe_rows(grid, question, np.arange(len(grid)), given).asked.attainment
    found = attain_grid(grid, question, given)
    with jax.enable_x64(False):
        narrow = attain_grid(grid, question, given)
    np.testing.assert_allclose(found.attainment, expected, rtol=1e-9, atol=1e-12)
    # what runs ahead in a pipeline is a small difference over a small share
    np.testing.assert_allclose(narrow.attainment, expected, atol=6e-4 if pipelines else 1e-5)
    assert narrow.attainment.dtype == np.float32
    assert len(np.unique(np.round(expected, 2))) > 5
    saturated = {Binding.PREFILL_CAPACITY, Binding.DECODE_CAPACITY, Binding.LINK}
    assert set(found.binding[given == 1e6]) <= saturated
    assert (found.attainment[given == 1e6] == 0.0).all()
    assert len(set(found.binding)) > 2
    assert (narrow.binding == found.binding).mean() > 0.99


def test_a_pipeline_is_not_scored_as_a_single_stage(monkeypatch):
    """One prefill shape with stages takes the whole grid to the program that has them."""
    taken = []
    prepare = rates._prepare

    def noted(*args, pipelines):
        taken.append(pipelines)
        return prepare(*args, pipelines=pipelines)

    monkeypatch.setattr(rates, "_prepare", noted)
    for pipelines in (True, False):
        grid = grid_of(pipelines=pipelines)
        attain_grid(grid, question_of(PROBLEM), np.full(len(grid), 3.0))
    assert taken == [True, False]


@pytest.mark.parametrize("other", [{"horizon": 100.0}, {"users": 8.0}])
def test_other_than_steady_traffic_is_refused(other):
    question = dataclasses.replace(question_of(PROBLEM), **other)
    grid = grid_of(pipelines=False)
    with pytest.raises(InputError, match="steady state"):
        attain_grid(grid, question, np.ones(len(grid)))
