"""Formulas of instances that do both phases, against limits that are known and the simulator."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from analysis_helpers import quick_jit

from fluidserve.deploy import aggregated_latency  # noqa: F401
from fluidserve.deploy.aggregated import (
    aggregated_at,
    aggregated_metrics,
    largest_aggregated_rate,
    prepare_aggregated,
)
from fluidserve.deploy.latency import latencies
from fluidserve.eventsim import simulate
from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.problem import Problem, engine_for
from fluidserve.search.score import as_arrays
from fluidserve.specs.applications import find_application, synthetic_workload
from fluidserve.specs.deployment import parse_label
from fluidserve.specs.slo import Slo
from fluidserve.stages.interrupted import with_bubbles
from fluidserve.timing.profile import load_profile

jitted_prepare = quick_jit(prepare_aggregated)
jitted_at = quick_jit(aggregated_at)
jitted_latencies = quick_jit(latencies)
jitted_metrics = quick_jit(aggregated_metrics)
GPU = find_gpu("a100")
CHAT = find_application("chatbot")
SLO = Slo(ttft=0.25, tpot=0.1, attainment=0.9)


def problem_of(workload=CHAT, slo=SLO, **engine) -> Problem:
    return Problem(
        model=find_model("OPT-13B"),
        gpu=GPU,
        workload=workload,
        slo=slo,
        engine=engine_for(load_profile("paper"), GPU, **engine),
    )


def plan_of(problem: Problem, label: str):
    system = problem.system(parse_label(label, gpu=GPU.name))
    system = jax.tree.map(lambda x: jnp.asarray([float(x)]), system)
    return jitted_prepare(system, as_arrays(problem.bins))


def found(problem: Problem, label: str, rate: float):
    plan = plan_of(problem, label)
    state = jitted_at(plan, jnp.array([rate]))
    return plan, state, jitted_latencies(plan, state)


@pytest.mark.parametrize("label", ["1C tp1", "1S tp1 b4096"])
def test_an_idle_instance_takes_the_step_times(label):
    """Prompts that fit into an iteration take their prefill time, tokens a step by themselves."""
    problem = problem_of(synthetic_workload(512, 64))
    _, _, times = found(problem, label, 1e-6)
    instance = problem.instance(1, 1)
    prefill = float(instance.prefill_time(512.0))
    step = float(instance.decode_time(1.0, 512.0 + 32.5))
    assert float(times.ttft[0, 0]) == pytest.approx(prefill, rel=0.02)
    assert float(times.tpot[0, 0]) == pytest.approx(step, rel=0.01)


def test_pieces_of_a_long_prompt_take_whole_iterations():
    """1,600 tokens in pieces of 512 are three full iterations and one of 64 tokens."""
    problem = problem_of(synthetic_workload(1600, 2))
    _, _, times = found(problem, "1S tp1 b512", 1e-6)
    instance, total = problem.instance(1, 1), 0.0
    for before, new in ((0, 512), (512, 512), (1024, 512), (1536, 64)):
        total += float(instance.times.stage_time(instance.chunk_work(before, new)))
    assert float(times.ttft[0, 0]) == pytest.approx(total, rel=0.02)


@pytest.mark.parametrize(
    ("label", "rate"),
    [("1C tp2", 6.5), ("1S tp2 b512", 6.0), ("1S tp2 b2048", 6.9), ("4S tp2 b1024", 27.0)],
)
def test_means_and_quantiles_follow_the_simulator(label, rate):
    """At about 80% of goodput; the docs give the errors over many more deployments."""
    problem = problem_of()
    _, _, times = found(problem, label, rate)
    system = problem.system(parse_label(label, gpu=GPU.name))
    runs = [simulate(system, CHAT, rate, requests=4000, seed=s).window() for s in range(3)]
    ttft = np.concatenate([r.ttft for r in runs])
    tpot = np.concatenate([r.tpot[r.n_out > 1] for r in runs])
    assert float(times.ttft_mean[0]) == pytest.approx(ttft.mean(), rel=0.1)
    assert float(times.ttft[1, 0]) == pytest.approx(np.quantile(ttft, 0.9), rel=0.16)
    assert float(times.tpot_mean[0]) == pytest.approx(tpot.mean(), rel=0.05)
    assert float(times.tpot[1, 0]) == pytest.approx(np.quantile(tpot, 0.9), rel=0.08)


@pytest.mark.parametrize("label", ["2C tp2", "2S tp2 b1024"])
def test_phases_add_up_to_the_mean_of_the_whole(label):
    """TTFT is the first two, and tokens beyond the first the last two."""
    problem = problem_of()
    plan, state, times = found(problem, label, 10.0)
    assert float(jnp.sum(times.phases[:2, 0])) == pytest.approx(float(times.ttft_mean[0]))
    gaps = float(jnp.sum(plan.bins.out_share * plan.lengths.gaps))
    decode = float(jnp.sum(times.phases[3:, 0]))
    assert decode == pytest.approx(gaps * float(state.decode.step[0]), rel=0.02)


@pytest.mark.parametrize("label", ["1C tp1", "1S tp1 b512", "2S tp2 b2048"])
def test_attainment_falls_with_the_rate_and_ends_at_saturation(label):
    problem = problem_of()
    plan = plan_of(problem, label)
    top = largest_aggregated_rate(plan)
    shares = [
        float(jitted_metrics(plan, SLO, jitted_at(plan, part * top)).attainment[0])
        for part in (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 1.01)
    ]
    assert shares[0] > 0.9
    assert all(a >= b - 1e-3 for a, b in itertools.pairwise(shares))
    assert shares[-1] == 0.0


def test_no_iteration_is_longer_than_a_full_one():
    """A TPOT limit above it is always met, which no prompt in a queue can change."""
    problem = problem_of()
    plan, state, _ = found(problem, "1S tp2 b512", 6.0)
    limit = 1.001 * float(state.prompts.longest[0])
    slo = dataclasses.replace(SLO, tpot=limit)
    assert float(jitted_metrics(plan, slo, state).tpot_attainment[0]) == 1.0


def test_prompts_of_other_lanes_count_until_all_lanes_hold_some():
    assert float(with_bubbles(jnp.array(0.3), 1.0)) == pytest.approx(0.3)
    assert float(with_bubbles(jnp.array(0.3), 2.0)) == pytest.approx(0.51)
    assert float(with_bubbles(jnp.array(1.0), 4.0)) == pytest.approx(1.0)


def test_preemption_holds_more_requests_than_reservation():
    """Room for what is there now lets in more than room for all that will be."""
    rates = [
        float(largest_aggregated_rate(plan_of(problem_of(kv_policy=policy), "1C tp1"))[0])
        for policy in ("reserve", "preempt")
    ]
    assert rates[1] > 1.02 * rates[0]
