"""The jitted score of a grid: one program, the numbers of single candidates, and no NaN."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from analysis_helpers import inputs_of, make_problem, plan_of, quick_jit

from fluidserve.deploy.disaggregated import evaluate
from fluidserve.search import score as module
from fluidserve.search.grid import disaggregated_grid
from fluidserve.search.score import (
    CHUNK,
    describe_rows,
    question_of,
    replica_bound,
    score_grid,
    score_plan,
)
from fluidserve.specs.applications import synthetic_workload
from fluidserve.testing import CountTraces, assert_no_nan

QUICK = {"xla_backend_optimization_level": 0}
CHAT = make_problem(link=25e9)
_evaluate = quick_jit(evaluate)


@functools.cache
def scored(budget=12):
    grid = disaggregated_grid(CHAT, budget)
    return grid, score_grid(grid, question_of(CHAT))


def counted(monkeypatch):
    """`score` replaced by a copy that counts its traces."""
    counter = CountTraces(
        module.score.__wrapped__, static_argnames="max_replicas", compiler_options=QUICK
    )
    monkeypatch.setattr(module, "score", counter)
    return counter


def test_one_program_for_all_values_and_grids(monkeypatch):
    """Every traced input changes, and so does the number of candidates; nothing recompiles."""
    counter = counted(monkeypatch)
    problems = [
        CHAT,
        make_problem("OPT-66B", ttft=2.5, tpot=0.15, attainment=0.99, link=float("inf")),
        make_problem("Llama-3.1-8B", "H100-SXM", ttft=1, tpot=1, link=1e9, max_batch=7),
        make_problem(workload=synthetic_workload(9, 1, 2.0, arrival_cv=2.0)),
    ]
    for problem, budget in zip(problems, (4, 9, 13, 16), strict=True):
        grid, question = disaggregated_grid(problem, budget), question_of(problem)
        assert len(grid) <= module._SMALLEST_ROOM
        found = score_grid(grid, question)
        assert found.goodput.shape == (len(grid),)
        describe_rows(grid, question, np.arange(2), np.array([0.1, 2.0]))
    assert counter.traces == 1


def test_equal_to_single_candidates_without_jit():
    """Without the grid's program, chunks and padding; the root is the same to rounding."""
    grid, scores = scored()
    for i in (0, len(grid) // 3):
        label = grid.deployment(i).label
        plan, slo = plan_of(CHAT, label), inputs_of(CHAT, label)[2]
        alone = score_plan(plan, slo, jnp.array(0.0), 0, max_replicas=64)
        assert float(alone.goodput) == pytest.approx(scores.goodput[i], rel=1e-6)
        assert int(alone.binding) == scores.binding[i]
        assert int(alone.doubts) == scores.doubts[i]
        for name, value in vars(alone.metrics).items():
            if value is not None:
                got = getattr(scores.metrics, name)[i]
                rounding = 1e-6 if name == "excess" else 1e-9  # a difference of shares near 0
                assert got == pytest.approx(float(value), rel=1e-5, abs=rounding), name


def test_attainment_at_the_goodput_is_the_target():
    """Every tenth candidate, evaluated by itself a little below and a little above."""
    grid, scores = scored()
    for i in range(0, len(grid), len(grid) // 10):
        label = grid.deployment(i).label
        plan, slo = plan_of(CHAT, label), inputs_of(CHAT, label)[2]
        rate = scores.goodput[i]
        if rate > 0:
            assert float(_evaluate(plan, slo, jnp.array(0.998 * rate)).attainment) >= 0.9
            assert float(_evaluate(plan, slo, jnp.array(1.002 * rate)).attainment) < 0.9


def test_padded_rows_do_not_matter():
    """A grid longer than a chunk, and single rows out of it, have the same scores."""
    grid = disaggregated_grid(CHAT, 40)
    assert len(grid) > 2 * CHUNK
    question = question_of(CHAT)
    scores = score_grid(grid, question)
    picked = np.array([0, 1, CHUNK - 1, CHUNK, len(grid) - 1])
    rates = np.maximum(scores.goodput[picked], 0.01)
    alone = describe_rows(grid, question, picked, rates)
    np.testing.assert_allclose(alone.goodput, scores.goodput[picked], rtol=1e-6)
    np.testing.assert_array_equal(alone.binding, scores.binding[picked])
    some = scores.goodput[picked] > 0
    np.testing.assert_allclose(
        alone.asked.attainment[some], scores.metrics.attainment[picked][some], rtol=1e-5
    )


def test_more_instances_never_serve_less():
    """Another prefill or decode instance of the same shape, all else equal (within 1 %)."""
    grid, scores = scored()
    where = {row: i for i, row in enumerate(_rows(grid))}
    compared = 0
    for (p, d, n, k), i in where.items():
        for more in ((p, d, n + 1, k), (p, d, n, k + 1)):
            if more in where:
                assert scores.goodput[where[more]] >= 0.99 * scores.goodput[i]
                compared += 1
    assert compared > 100


def _rows(grid):
    return list(zip(grid.prefill, grid.decode, grid.n_prefill, grid.n_decode, strict=True))


def test_replica_bound_covers_the_grid():
    grid, _ = scored()
    assert replica_bound(grid) == 64
    many = dataclasses.replace(grid, n_prefill=np.array([65]))
    assert replica_bound(many) == 128


EXTREMES = [
    {"ttft": 1e-6, "tpot": 1e-6},
    {"ttft": 1e6, "tpot": 1e6},
    {"ttft": 1e-6, "tpot": 1e6},
    {"ttft": 1e6, "tpot": 1e-6, "link": 1.0},
    {"link": 1.0},
    {"link": float("inf")},
    {"attainment": 0.001},
    {"attainment": 0.999999},
    {"max_batch": 1},
    {"workload": synthetic_workload(1, 1)},
    {"workload": synthetic_workload(1, 10_000)},
    {"workload": synthetic_workload(30_000, 1), "link": 1.0},
    {"workload": synthetic_workload(500, 200, 3.0, 3.0, arrival_cv=10.0), "ttft": 1.0},
    {"workload": synthetic_workload(500, 200, arrival_cv=0.0)},
    {"model": "Llama-3.2-1B", "gpu": "B200", "workload": synthetic_workload(1e6, 1e6), "ttft": 1e6},
]


@pytest.mark.parametrize("wide", [True, False], ids=["f64", "f32"])
def test_no_nan_over_extreme_inputs(wide):
    """Limits 1e-6 to 1e6 s, lengths 1 to 1e6 tokens, links 1 B/s to inf, rates 1e-9 to 1e9/s."""
    with jax.enable_x64(wide):
        for changes in EXTREMES:
            problem = make_problem(**changes)
            grid, question = disaggregated_grid(problem, 9), question_of(problem)
            assert len(grid)
            rates = np.resize([1e-9, 1.0, 1e9], len(grid))
            for found in (
                score_grid(grid, question),
                describe_rows(grid, question, np.arange(len(grid)), rates),
            ):
                assert_no_nan(found, infinite=True)
                assert_no_nan((found.goodput, found.metrics))
                assert (found.goodput >= 0).all()
                assert (found.metrics.attainment <= 1 + 1e-6).all()


def test_float32_agrees_with_float64():
    """Metrics at the same rates to 1e-4 wherever no stage is near saturation; goodput to 1e-3.

    The search ends within 2e-4 of the root, which the two widths reach by different steps. In deep
    pipelines the chance of a long prompt ahead is a difference of nearly equal numbers: 5e-4.
    """
    grid, wide = scored()
    question, rows = question_of(CHAT), np.arange(len(grid))
    rates = 0.9 * wide.goodput
    at = describe_rows(grid, question, rows, rates)
    with jax.enable_x64(False):
        narrow, narrow_at = (
            score_grid(grid, question),
            describe_rows(grid, question, rows, rates),
        )
    assert narrow.goodput.dtype == np.float32
    assert wide.goodput.dtype == np.float64
    np.testing.assert_allclose(narrow.goodput, wide.goodput, rtol=1e-3)
    calm = (at.asked.prefill_load < 0.95) & (at.asked.decode_load < 0.95)
    assert calm.mean() > 0.8
    deep = grid.stacked().pp[grid.prefill] >= 4
    for chosen, rtol in ((calm & ~deep, 1e-4), (calm & deep, 5e-4)):
        assert chosen.sum() > 20
        for name in ("attainment", "ttft_attainment", "tpot_attainment", "prefill_load", "batch"):
            got, expected = getattr(narrow_at.asked, name), getattr(at.asked, name)
            np.testing.assert_allclose(got[chosen], expected[chosen], rtol=rtol, err_msg=name)
        for name in ("ttft_mean", "tpot_mean"):
            got, expected = getattr(narrow_at.latencies, name), getattr(at.latencies, name)
            np.testing.assert_allclose(got[chosen], expected[chosen], rtol=rtol, err_msg=name)


JUMPS = [
    {"workload": synthetic_workload(500, 200, arrival_cv=0.0)},
    {"workload": synthetic_workload(500, 200, 0.5, 0.5, arrival_cv=0.0), "attainment": 0.99},
    {"attainment": 0.01},
    {"workload": synthetic_workload(512, 64), "ttft": 1e6, "tpot": 0.03, "attainment": 0.5},
]


@pytest.mark.parametrize("wide", [True, False], ids=["f64", "f32"])
def test_goodput_lies_on_the_side_of_a_jump_that_meets_the_target(wide):
    """Where attainment jumps, between two rates that are nearly the same, as where it is smooth."""
    with jax.enable_x64(wide):
        for changes in JUMPS:
            problem = make_problem(**changes)
            grid, question = disaggregated_grid(problem, 9), question_of(problem)
            scores = score_grid(grid, question)
            serving = scores.goodput > 0
            assert serving.sum() > 10
            met = scores.metrics.attainment[serving]
            assert (met >= float(problem.slo.attainment) - 1e-3).all(), changes
