"""Models with windows, state or sparse attention: what they change, and both paths the same."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from analysis_helpers import inputs_of, make_problem, quick_jit

from fluidserve.deploy.disaggregated import evaluate, prepare
from fluidserve.eventsim import goodput
from fluidserve.search.grid import misfit
from fluidserve.search.plan import analyse
from fluidserve.specs.applications import synthetic_workload
from fluidserve.specs.deployment import parse_label
from fluidserve.timing.kv import kv_shape, token_bytes

LONG = synthetic_workload(12_000, 400, isl_cv=0.8, osl_cv=0.7)
SHORT = synthetic_workload(800, 300, isl_cv=0.8, osl_cv=0.7)
LABEL = "1P1D tp2/tp1"


def question(model, **changes):
    habits = dict(gpu="H100-SXM", profile="default", workload=LONG, ttft=4.0, tpot=0.02)
    return make_problem(model, **(habits | changes))


def analysed(problem, label=LABEL):
    return analyse(problem, parse_label(label, gpu=problem.gpu.name), None)


# Windows of 128 and of 4,096 tokens, a slow link, and state whatever the length.
@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("gpt-oss-20b", {}),
        ("Mistral-7B-v0.1", {"link": 20e9}),
        ("Nemotron-3-Nano-30B-A3B", {"workload": SHORT, "ttft": 0.5, "tpot": 0.03}),
    ],
)
def test_formulas_agree_with_the_simulator(model, changes):
    problem = question(model, **changes)
    row = analysed(problem)
    system = problem.system(parse_label(LABEL, gpu=problem.gpu.name))
    found = goodput(
        system, problem.workload, problem.slo, requests=1500, guess=row.goodput, seeds=(0, 1)
    )
    assert row.goodput == pytest.approx(found.value, rel=0.05)


def without_windows(problem):
    """The same model with every layer keeping every token."""
    everything = token_bytes(problem.model)
    model = dataclasses.replace(
        problem.model, window=0, kv_bytes_per_token=everything, kv_window_bytes=0.0
    )
    return dataclasses.replace(problem, model=model)


def test_windows_save_memory_time_and_bandwidth():
    windowed = question("Gemma-3-4B", link=20e9)
    full = without_windows(windowed)
    assert kv_shape(full.model) is None
    assert token_bytes(full.model) == token_bytes(windowed.model)
    saved, whole = analysed(windowed), analysed(full)
    assert saved.goodput > 1.2 * whole.goodput
    assert saved.kv_use < whole.kv_use
    assert saved.link_load / saved.goodput < 0.3 * whole.link_load / whole.goodput


def test_the_longest_request_must_fit_with_what_it_keeps():
    workload = synthetic_workload(100_000, 1000, isl_cv=0.0, osl_cv=0.0)
    windowed = question("Gemma-3-27B", workload=workload)
    full = without_windows(windowed)
    assert misfit(windowed, windowed.instance(1, 1), tp=1, pp=1) == ""
    assert "longest request" in misfit(full, full.instance(1, 1), tp=1, pp=1)


def test_short_prompts_do_not_notice_a_window():
    """All within it, so that only the memory of a token differs in how it is counted."""
    short = synthetic_workload(200, 100, isl_cv=0.0, osl_cv=0.0)
    changes = dict(workload=short, ttft=0.5)
    windowed = question("Mistral-7B-v0.1", **changes)
    plain = without_windows(windowed)
    assert analysed(windowed).goodput == pytest.approx(analysed(plain).goodput, rel=1e-3)


@pytest.mark.parametrize("model", ["Qwen3-Next-80B-A3B"])
def test_gradients_are_finite(model):
    system, bins, slo, scv = inputs_of(question(model, workload="chatbot"), "1P1D tp4/tp4")

    @quick_jit
    def slopes(system, bins, rate):
        def value(system, bins):
            return evaluate(prepare(system, bins, scv), slo, rate).tpot_attainment.sum()

        return jax.grad(value, argnums=(0, 1))(system, bins)

    for rate in (0.0, 5.0, 1e4):
        leaves = jax.tree.leaves(slopes(system, bins, jnp.array(rate)))
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in leaves)
