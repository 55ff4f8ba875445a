"""How far limits can be tightened at a rate: the other side of goodput."""

import dataclasses
import math

import numpy as np
import pytest
from analysis_helpers import make_problem

from fluidserve.deploy.promise import scaled
from fluidserve.errors import InputError, NoFeasibleDeployment
from fluidserve.eventsim import simulate
from fluidserve.search.plan import grid_for, grids_of
from fluidserve.search.score import question_of, score_grid
from fluidserve.search.slo_scale import LOOSEST, slo_scales
from fluidserve.search.tightest import tightest
from fluidserve.specs.deployment import parse_label
from fluidserve.specs.scale import least_scale
from fluidserve.specs.slo import Slo
from fluidserve.verify.scale import with_simulated_scale

CHAT = make_problem()
LABELS = ("1P1D tp2/tp1", "2C tp1", "1S tp2 b512")


def grid_of(problem, label):
    return grid_for(problem, parse_label(label, gpu=problem.gpu.name))


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("per_gpu", [0.3, 1.5])
def test_under_the_scaled_promise_the_rate_is_the_goodput(label, per_gpu):
    grid = grid_of(CHAT, label)
    rate = per_gpu * float(grid.gpus[0])
    (factor,) = slo_scales(grid, question_of(CHAT), np.array([rate]))
    tighter = dataclasses.replace(CHAT, slo=scaled(CHAT.slo, float(factor)))
    (goodput,) = score_grid(grid, question_of(tighter)).goodput
    assert goodput == pytest.approx(rate, rel=2e-3)


def test_a_whole_grid_is_searched_at_once():
    question = question_of(CHAT)
    for grid in grids_of(CHAT, 4, None, (512, 2048)).values():
        together = slo_scales(grid, question, 1.0 * grid.gpus)
        alone = [
            slo_scales(grid_of(CHAT, grid.deployment(i).label), question, np.array([n]))[0]
            for i, n in enumerate(1.0 * grid.gpus)
        ]
        np.testing.assert_allclose(together, alone, rtol=1e-3)


@pytest.mark.parametrize("label", LABELS)
def test_nothing_helps_beyond_capacity(label):
    assert slo_scales(grid_of(CHAT, label), question_of(CHAT), np.array([500.0])) == math.inf


@pytest.mark.parametrize("label", LABELS)
def test_limits_of_an_idle_system_can_be_tightened_most(label):
    rates = np.array([0.01, 0.5, 1.5])
    grid = grid_of(CHAT, label)
    factors = [slo_scales(grid, question_of(CHAT), np.array([r]))[0] for r in rates]
    assert factors == sorted(factors)
    assert factors[-1] < LOOSEST


@pytest.mark.parametrize("label", LABELS)
def test_the_simulator_needs_the_same(label):
    kind = parse_label(label, gpu=CHAT.gpu.name).kind
    (rows,) = tightest(CHAT, {kind: grid_of(CHAT, label)}, 1.0, budget=4).values()
    checked = with_simulated_scale(CHAT, rows[0])
    assert checked.simulated is not None
    value, low, high = checked.simulated
    assert low < value < high
    assert checked.formulas == pytest.approx(value, rel=0.08)
    assert checked.scale == value


def test_requests_of_one_run_need_it_exactly():
    """Of the promise scaled by the factor just enough requests are kept, and no more."""
    system = CHAT.system(parse_label("1C tp2", gpu=CHAT.gpu.name))
    r = simulate(system, CHAT.workload, 3.0, requests=500, seed=0).window()
    slo = Slo(ttft=0.25, tpot=0.1, tpot_share=0.95, attainment=0.8)
    factor = least_scale(slo, ttft=r.ttft, tpot=r.tpot, e2e=r.e2e, n_out=r.n_out)

    def kept(f):
        several = r.n_out > 1
        first = np.mean(r.ttft <= 0.25 * f * (1 + 1e-12)) >= 0.8
        return first and np.mean(r.tpot[several] <= 0.1 * f * (1 + 1e-12)) >= 0.95

    assert kept(factor)
    assert not kept(0.9999 * factor)


def test_the_tightest_of_each_kind_comes_first():
    found = tightest(CHAT, grids_of(CHAT, 4, None, (512, 2048)), 1.0, budget=4, top=2)
    assert set(found) == {"disaggregated", "colocated", "chunked"}
    for kind, rows in found.items():
        assert [row.kind for row in rows] == [kind] * 2
        assert rows[0].formulas <= rows[1].formulas * 1.001
        assert all(row.rate == pytest.approx(row.gpus) for row in rows)


def test_what_cannot_be_asked():
    grids = grids_of(CHAT, 2, ("colocated",))
    with pytest.raises(InputError, match="must be positive"):
        tightest(CHAT, grids, 0.0, budget=2)
    with pytest.raises(NoFeasibleDeployment, match="no deployment carries 900 requests/s per GPU"):
        tightest(CHAT, grids, 900.0, budget=2)
    large = make_problem("OPT-66B")
    with pytest.raises(NoFeasibleDeployment, match="does not fit into 1"):
        tightest(large, grids_of(large, 1), 1.0, budget=1)
    early = dataclasses.replace(CHAT, horizon=100)
    with pytest.raises(InputError, match="steady state"):
        tightest(early, grids_of(early, 2, ("disaggregated",)), 1.0, budget=2)
