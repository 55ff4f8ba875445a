"""Plans of screened budgets against plans of all deployments."""

import dataclasses
import functools

import numpy as np
import pytest
from analysis_helpers import make_problem, quick_jit

from fluidserve.errors import InputError, NoFeasibleDeployment
from fluidserve.report.sentences import screening_sentences
from fluidserve.search import grid, pairs, plan, screen, tables
from fluidserve.search.screen import screened_grid
from fluidserve.specs.slo import Slo

CHAT = make_problem(link=25e9)
BUDGET = 24
POOLS = ("disaggregated",)


@pytest.fixture(autouse=True, scope="module")
def small():
    """Few deployments count as many, and few are kept; programs that run once compile cheaply."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name, static in ((tables, "_build", "max_replicas"), (pairs, "_solve", ())):
            plain = getattr(module, name).__wrapped__
            patch.setattr(module, name, quick_jit(plain, static_argnames=static))
        patch.setattr(tables, "CHUNK", 32)
        patch.setattr(pairs, "CHUNK", 256)
        patch.setattr(screen, "KEPT", 64)
        patch.setattr(screen, "_BLOCK", 256)
        patch.setattr(screen, "_ENOUGH", 20)
        patch.setattr(plan, "MAX_CANDIDATES", 500)
        yield


@functools.cache
def every_row(rate):
    """The plan of all deployments."""
    everything = grid.disaggregated_grid(CHAT, BUDGET)
    return plan.answer(CHAT, everything, budget=BUDGET, rate=rate, top=10)


@pytest.mark.parametrize("rate", [None, 20.0])
def test_screened_and_exact_plans_agree(rate):
    exact = every_row(rate)
    found = plan.plan(CHAT, budget=BUDGET, rate=rate, top=10, kinds=POOLS)
    assert found.deployments == exact.deployments
    assert exact.screening is None
    assert found.screening is not None
    assert found.screening.deployments == exact.candidates
    assert found.candidates < 0.4 * exact.candidates
    assert 0.0 < found.screening.error_p99 <= found.screening.error_max < 5e-3
    assert f"{exact.candidates:,} deployments" in screening_sentences(found)[0]
    assert screening_sentences(exact) == []


def test_small_budgets_are_not_screened():
    assert plan.grid_of(CHAT, 4).screened is None


def test_what_is_kept_lies_within_the_budget():
    kept = screened_grid(CHAT, BUDGET, least=None)
    assert kept.gpus.max() <= BUDGET
    labels = {kept.deployment(i).label for i in range(len(kept))}
    assert len(labels) == len(kept)
    everything = grid.disaggregated_grid(CHAT, BUDGET)
    assert labels < {everything.deployment(i).label for i in range(len(everything))}


def test_more_than_the_fleet_serves():
    """The nearest deployment is that with most goodput."""
    with pytest.raises(NoFeasibleDeployment, match=r"serves 1e\+06") as caught:
        plan.plan(CHAT, budget=BUDGET, rate=1e6, kinds=POOLS)
    serves = float(caught.value.nearest.split("serves ")[1].split()[0])
    most = max(row.goodput for row in every_row(None).deployments)
    assert serves == pytest.approx(most, rel=0.01)


def test_limits_that_nothing_meets():
    slo = Slo(ttft=1e-3, tpot=0.1)
    with pytest.raises(NoFeasibleDeployment, match="however little traffic"):
        plan.plan(dataclasses.replace(CHAT, slo=slo), budget=BUDGET, kinds=POOLS)


def test_questions_that_tables_do_not_hold_are_refused(monkeypatch):
    with pytest.raises(InputError, match="joint limits"):
        plan.plan(dataclasses.replace(CHAT, horizon=100), budget=BUDGET, kinds=POOLS)
    monkeypatch.setattr(screen, "_MOST_BYTES", 1000)
    with pytest.raises(InputError, match="more than a GiB; plan a part"):
        plan.plan(CHAT, budget=BUDGET, kinds=POOLS)


def test_pairs_are_those_whose_pools_reach_a_rate():
    """Against a loop over all pairs."""
    rng = np.random.default_rng(0)
    gpus = rng.integers(1, 9, 40)
    first, second = rng.uniform(0.0, 10.0, (2, 40))
    choice = screen._Choice(None, gpus, first, second, budget=12)  # type: ignore[arg-type]
    for rate, cap in ((3.0, 12), (6.0, 8), (11.0, 12)):
        expected = sum(
            first[i] >= 0.995 * rate and second[j] >= 0.995 * rate and gpus[i] + gpus[j] <= cap
            for i in range(40)
            for j in range(40)
        )
        assert choice.partners(rate, cap).sum() == expected
