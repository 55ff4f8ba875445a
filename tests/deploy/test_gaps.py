"""Single gaps between tokens by formulas: limits that are known, and the event simulator."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from analysis_helpers import jitted_prepare, make_problem, quick_jit
from numpy.typing import ArrayLike

from fluidserve.deploy import aggregated_gaps  # noqa: F401
from fluidserve.deploy.aggregated import aggregated_at, aggregated_metrics, prepare_aggregated
from fluidserve.deploy.disaggregated import at_rate, gaps_within
from fluidserve.eventsim import simulate
from fluidserve.problem import Problem
from fluidserve.search.score import as_arrays, question_of
from fluidserve.specs.applications import synthetic_workload
from fluidserve.specs.deployment import parse_label
from fluidserve.specs.slo import Slo

FIGURE_1 = make_problem(workload=synthetic_workload(512, 64), ttft=0.4, tpot=0.04)
TIMES = np.geomspace(5e-3, 3.0, 400)
LABELS = ("1C tp1", "1S tp1 b256", "2P1D tp1/tp1")
RATES = dict(zip(LABELS, (4.0, 5.0, 8.0), strict=True))

jitted_together = quick_jit(prepare_aggregated)


@quick_jit
def shares_together(plan, rate, times):
    state = aggregated_at(plan, rate)
    return jax.vmap(lambda time: gaps_within(plan, state, time))(times)


@quick_jit
def shares_apart(plan, rate, times):
    state = at_rate(plan, rate)
    return jax.vmap(lambda time: gaps_within(plan, state, time))(times)


@quick_jit
def slopes_together(plan, rate, times):
    """Derivatives along a rate and times that grow by one part."""

    def share(scale):
        state = aggregated_at(plan, scale * rate)
        return jax.vmap(lambda time: gaps_within(plan, state, scale * time))(times)

    return jax.jvp(share, (1.0,), (1.0,))[1]


metrics_together = quick_jit(
    lambda plan, slo, rate: aggregated_metrics(plan, slo, aggregated_at(plan, rate))
)


def plan_of(problem: Problem, label: str):
    system = problem.system(parse_label(label, gpu=problem.gpu.name))
    if "P" in label:
        return jitted_prepare(as_arrays(system), as_arrays(problem.bins))
    return jitted_together(as_arrays(system), as_arrays(problem.bins))


def shares(problem: Problem, label: str, rate: float, times: ArrayLike = TIMES) -> np.ndarray:
    """Share of the gaps within each time."""
    found = shares_apart if "P" in label else shares_together
    whole = jnp.asarray(np.resize(times, len(TIMES)))  # one program for any number of times
    return np.asarray(found(plan_of(problem, label), jnp.array(rate), whole))[: np.size(times)]


@pytest.fixture(scope="module")
def gaps():
    """Simulated gaps of each deployment, sorted, s."""
    found = {}
    for label, rate in RATES.items():
        system = FIGURE_1.system(parse_label(label, gpu=FIGURE_1.gpu.name))
        records = simulate(
            system, FIGURE_1.workload, rate, requests=1500, seed=11, record_gaps=True
        ).window()
        assert records.gaps is not None
        found[label] = np.sort(records.gaps.values)
    return found


@pytest.mark.parametrize("label", LABELS)
def test_the_distribution_of_gaps_is_the_simulated_one(gaps, label):
    """Within 3 % of all gaps at nearly all times, and quantiles where they do not jump."""
    formula = shares(FIGURE_1, label, RATES[label])
    assert (np.diff(formula) > -1e-5).all()
    for level in (0.5, 0.9, 0.99):
        time = np.quantile(gaps[label], level)
        assert np.interp(level, formula, TIMES) == pytest.approx(time, rel=0.08)
    simulated = np.searchsorted(gaps[label], TIMES, side="right") / len(gaps[label])
    assert np.quantile(np.abs(formula - simulated), 0.95) < 0.03
    one_step = shares(FIGURE_1, label, 0.2 * RATES[label])
    assert np.abs(one_step - simulated).max() > 0.1  # another rate is another distribution


@pytest.mark.parametrize("label", LABELS)
def test_idle_instances_take_one_step(label):
    step = float(FIGURE_1.instance(1, 1).decode_time(1.0, 512.0 + 32.5))
    within = shares(FIGURE_1, label, 1e-5, [0.97 * step, 1.03 * step])
    np.testing.assert_allclose(within, [0.0, 1.0], atol=0.02)


@pytest.mark.parametrize("label", LABELS)
def test_any_gap_is_in_time_without_a_limit_and_none_in_overload(label):
    assert shares(FIGURE_1, label, RATES[label], [np.inf]) == pytest.approx(1.0, abs=1e-5)
    assert shares(FIGURE_1, label, 100.0, [10.0]) == 0.0


@pytest.mark.parametrize("label", LABELS[:2])
def test_gradients_are_finite(label):
    times = jnp.array([0.01, 0.02, 0.2, 1e3])
    assert np.isfinite(slopes_together(plan_of(FIGURE_1, label), jnp.array(3.0), times)).all()


def test_a_limit_on_gaps_is_a_constraint_of_its_own():
    label, rate = "1S tp1 b256", RATES["1S tp1 b256"]
    (share,) = shares(FIGURE_1, label, rate, [0.03])

    def promised(**limits: float):
        problem = dataclasses.replace(FIGURE_1, slo=Slo(itl=0.03, **limits))
        slo = as_arrays(question_of(problem).slo)
        return metrics_together(plan_of(problem, label), slo, jnp.array(rate))

    alone = promised(itl_share=0.9)
    assert float(alone.excess) == pytest.approx(share - 0.9, abs=1e-4)
    assert float(alone.attainment) == pytest.approx(share, abs=1e-4)
    both = promised(ttft=0.4, itl_share=0.01)
    assert float(both.attainment) == pytest.approx(float(both.ttft_attainment), abs=1e-6)
    assert float(both.excess) == pytest.approx(float(both.ttft_attainment) - 0.9, abs=1e-5)
