"""Dispatch rules in both pools: exact splits, order of the rules, and known rates."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from analysis_helpers import affine_instance, make_problem, plan_of, quick_jit

from fluidserve.deploy.disaggregated import at_rate, ttft_within
from fluidserve.eventsim import run
from fluidserve.search.score import as_arrays
from fluidserve.specs.applications import find_application, synthetic_workload
from fluidserve.specs.lengths import length_bins
from fluidserve.stages.decode import decode_lengths, decode_state
from fluidserve.stages.prefill import prefill_shape, prefill_state
from fluidserve.timing.instance import System

RULES = ("shared", "jsq", "round-robin", "random")
EQUAL = as_arrays(length_bins(synthetic_workload(512, 2).lengths))
CHAT = as_arrays(length_bins(find_application("chatbot").lengths))

_shape = quick_jit(prefill_shape)


@functools.partial(jax.jit, static_argnames="rule")
def _met(shape, share, replicas, rate, limit, arrival_scv, rule):
    state = prefill_state(shape, replicas, rate, arrival_scv=arrival_scv, dispatch=rule)
    return share @ state.within(limit)


def met(shape, bins, *, replicas, rate, limit, rule, arrival_scv=1.0):
    """Share of the prompts with a TTFT within the limit."""
    values = (jnp.array(float(x)) for x in (replicas, rate, limit, arrival_scv))
    return float(_met(shape, bins.in_share, *values, rule=rule))


def largest(share, low, high):
    """Largest rate at which 90 % are in time, by bisection."""
    for _ in range(12):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if share(middle) >= 0.9 else (low, middle)
    return low


@pytest.mark.parametrize("pp", [1.0, 2.0])
def test_random_pool_is_single_instances(pp):
    shape = _shape(affine_instance(0.02, 1e-4, pp=pp), CHAT)
    for rate, limit in ((3.0, 0.2), (7.0, 0.5)):
        one = met(shape, CHAT, replicas=1, rate=rate, limit=limit, rule="shared")
        five = met(shape, CHAT, replicas=5, rate=5 * rate, limit=limit, rule="random")
        assert five == pytest.approx(one, abs=1e-6)


@pytest.mark.parametrize("arrival_scv", [0.5, 1.0, 3.0])
def test_one_instance_knows_no_rule(arrival_scv):
    shape = _shape(affine_instance(0.02, 1e-4, pp=2.0), CHAT)
    answers = {
        met(shape, CHAT, replicas=1, rate=6, limit=0.4, rule=r, arrival_scv=arrival_scv)
        for r in RULES
    }
    assert max(answers) - min(answers) < 1e-6


def test_the_more_a_rule_looks_the_more_prompts_are_in_time():
    shape = _shape(affine_instance(0.02, 1e-4), CHAT)
    for replicas in (2, 4, 8):
        shares = [
            met(shape, CHAT, replicas=replicas, rate=8 * replicas, limit=0.3, rule=rule)
            for rule in RULES
        ]
        assert shares == sorted(shares, reverse=True)
        assert shares[0] > shares[-1] + 0.05


# rates at which the 90th percentile of TTFT is 300 ms, prompts taking 143.4 ms each
KNOWN = {
    ("round-robin", 2): 8.9,
    ("round-robin", 3): 15.4,
    ("round-robin", 4): 22.2,
    ("jsq", 2): 8.9,
    ("jsq", 3): 15.4,
    ("jsq", 4): 22.2,
    ("random", 2): 5.7,
    ("random", 3): 8.7,
    ("random", 4): 11.6,
}


@pytest.mark.parametrize(("rule", "workers"), KNOWN)
def test_known_rates_of_equal_prompts_by_the_formulas(rule, workers):
    """Round-robin and random within 2 %; the two exponentials of jsq cost 5 % at equal prompts."""
    shape = _shape(affine_instance(0.1434), EQUAL)
    found = largest(
        lambda rate: met(shape, EQUAL, replicas=workers, rate=rate, limit=0.3, rule=rule),
        0.1,
        workers / 0.1434,
    )
    assert found == pytest.approx(KNOWN[rule, workers], rel=0.05 if rule == "jsq" else 0.02)


@pytest.mark.parametrize(("rule", "workers"), [key for key in KNOWN if key[1] != 3])
def test_known_rates_of_equal_prompts_by_simulation(rule, workers):
    """A fixed sample of 20,000 gaps; 4 % is twice the difference between such samples."""
    one = affine_instance(0.1434)
    system = System(
        prefill=one,
        decode=one,
        n_prefill=workers,
        n_decode=1,
        kv_bytes_per_token=0.0,
        link_bandwidth=1.0,
        handover_overhead=0.0,
        max_batch=1e9,
        dispatch=rule,
    )
    gaps = np.cumsum(np.random.default_rng(7).exponential(size=20_000))
    ones = np.ones(len(gaps), int)

    def share(rate):
        return float((run(system, gaps / rate, ones, ones, seed=1).ttft <= 0.3).mean())

    known = KNOWN[rule, workers]
    assert share(0.96 * known) >= 0.9
    assert share(1.04 * known) < 0.9


@pytest.mark.parametrize("rule", ["round-robin", "random"])
def test_decode_instances_without_a_look_stand_alone(rule):
    instance = affine_instance(0.01, 5e-4, kv_capacity=40_000.0)
    lengths = decode_lengths(CHAT, "prefill")
    state = quick_jit(decode_state, static_argnames="dispatch")
    args = {"max_batch": 64.0, "transfer": jnp.array(0.0)}
    one, four, rate = jnp.array(1.0), jnp.array(4.0), jnp.array(2.0)
    gaps = 0.25 if rule == "round-robin" else 1.0
    alone = state(instance, lengths, one, rate, arrival_scv=gaps, **args)
    pool = state(instance, lengths, four, 4 * rate, arrival_scv=1.0, dispatch=rule, **args)
    together = state(instance, lengths, four, 4 * rate, arrival_scv=1.0, **args)
    for name in ("batch", "step", "step_var", "waits", "drain"):
        assert float(getattr(pool, name)) == pytest.approx(float(getattr(alone, name)), rel=1e-5)
    assert float(together.step_var) < float(pool.step_var)
    assert float(together.waits) < float(pool.waits)


@pytest.mark.parametrize("rule", ["shared", "random"])
def test_an_idle_deployment_does_not_feel_its_pools(rule):
    """TTFT at a vanishing rate is the prompt's own pass, however many instances there are."""
    problem = make_problem(ttft=0.2, dispatch=rule)
    share = quick_jit(lambda plan: ttft_within(plan, at_rate(plan, 1e-7 * plan.prefill.pp), 0.2))
    few, many = (share(plan_of(problem, label)) for label in ("1P1D tp2/tp2", "4P3D tp2/tp2"))
    # a load below 1e-4 counts as that
    np.testing.assert_allclose(few, many, atol=2e-4)
