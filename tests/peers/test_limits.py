"""Questions on limits that planners without queueing get wrong, with the right answers."""

import dataclasses
import functools
import math

import jax.numpy as jnp
import pytest
from analysis_helpers import AffineTimes, affine_instance, quick_jit

from fluidserve.errors import NoFeasibleDeployment
from fluidserve.eventsim import goodput
from fluidserve.goodput import largest_meeting
from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.problem import Problem, engine_for
from fluidserve.search import score
from fluidserve.search.plan import plan
from fluidserve.search.score import as_arrays
from fluidserve.specs.applications import synthetic_workload
from fluidserve.specs.lengths import length_bins
from fluidserve.specs.slo import Slo
from fluidserve.stages.prefill import prefill_shape, prefill_state
from fluidserve.timing.instance import Instance, System
from fluidserve.timing.profile import load_profile

PREFILL, LIMIT = 0.1434, 0.3
"""Time of one prompt of 4000 tokens on four H200, s, and the limit on P90 of TTFT."""
PUBLISHED = {2: 8.9, 3: 15.4, 4: 22.2}
"""Requests/s that so many workers behind one queue serve with P90 below the limit, by an
independent simulation of deterministic service; their saturated rates are 14, 21 and 28."""


@quick_jit
def _pool(workers):
    bins = as_arrays(length_bins(synthetic_workload(4000, 1).lengths))
    shape = prefill_shape(affine_instance(PREFILL), bins)

    def share(rate):
        state = prefill_state(shape, workers, rate)
        return jnp.sum(bins.in_share * state.within(LIMIT))

    return largest_meeting(share, 0.9, workers / PREFILL)


@pytest.mark.parametrize("workers", PUBLISHED)
def test_workers_that_keep_p90_of_ttft(workers):
    """To 2.5 %: with two workers the formulas stay 2 % below."""
    assert float(_pool(jnp.array(float(workers)))) == pytest.approx(PUBLISHED[workers], rel=0.025)


@pytest.mark.parametrize("workers", PUBLISHED)
def test_the_same_by_simulation(workers):
    # plain numbers: the simulator is slow on arrays
    at_once = AffineTimes(fixed=1e-6)
    system = System(
        prefill=Instance(times=AffineTimes(fixed=PREFILL), pp=1, kv_capacity=1e12),
        decode=Instance(times=at_once, pp=1, kv_capacity=1e12),
        n_prefill=workers,
        n_decode=1,
        kv_bytes_per_token=0.0,
        link_bandwidth=1.0,
        handover_overhead=0.0,
        max_batch=1024,
    )
    slo = Slo(ttft=LIMIT, ttft_share=0.9)
    work = synthetic_workload(4000, 1)
    found = goodput(system, work, slo, guess=PUBLISHED[workers], requests=8000, seeds=(0, 1, 2))
    assert found.value == pytest.approx(PUBLISHED[workers], abs=4 * found.se + 0.05)


@functools.cache
def _qwen():
    gpu = find_gpu("H200")
    return Problem(
        model=find_model("Qwen3-32B"),
        gpu=gpu,
        workload=synthetic_workload(4000, 500),
        slo=Slo(),
        engine=engine_for(load_profile("default"), gpu),
    )


@pytest.fixture(scope="module")
def _quickly_compiled():
    """The scoring program compiled for a few calls, and for few candidates at a time."""
    quick = quick_jit(score.score.__wrapped__, static_argnames="max_replicas")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(score, "score", quick)
        patch.setattr(score, "CHUNK", 32)
        patch.setattr(score, "_SMALLEST_ROOM", 32)
        yield


@pytest.mark.usefixtures("_quickly_compiled")
@pytest.mark.parametrize(
    ("limits", "reason", "told"),
    [
        ({"ttft": 0.02, "ttft_share": 0.99, "tpot": 0.05}, "ttft unreachable", "P99 TTFT"),
        ({"ttft": 3.0, "tpot": 0.001, "tpot_share": 0.95}, "tpot unreachable", "P95 TPOT"),
        ({"e2e": 0.5, "e2e_share": 0.95}, "e2e unreachable", "P95 E2E"),
    ],
)
def test_an_unreachable_limit_is_named_with_the_closest_latency(limits, reason, told):
    """No plan is an answer: which limit stops all of them, and what comes closest."""
    slo = Slo(**({"e2e": math.inf, "e2e_share": 0.0} | limits))  # one program for all of them
    with pytest.raises(NoFeasibleDeployment) as nothing:
        plan(dataclasses.replace(_qwen(), slo=slo), budget=4, kinds=("disaggregated",))
    assert set(nothing.value.reasons) == {reason}
    assert told in (nothing.value.nearest or "")
