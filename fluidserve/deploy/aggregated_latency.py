"""Means of TTFT, TPOT and of each phase where instances do both phases; see `deploy.latency`.

The phases are those of a disaggregated deployment: nothing is handed over, and the first step is
from the end of prefill to the second token, prompts that come between included.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from fluidserve.deploy.aggregated import AggregatedPlan, AggregatedState, step_running
from fluidserve.deploy.latency import decode_mean, phases, tpot_mean, ttft_mean


@phases.register(AggregatedPlan)
def _phases(plan: AggregatedPlan, state: AggregatedState) -> Float[Array, "p *c"]:
    prefill, decode = state.prefill, state.decode
    share = 1.0 - plan.bins.out_share[0]
    steps = plan.lengths.mean_steps
    queue = prefill.wait.mean * prefill.unit + decode.mean_wait()
    times = (
        queue + 0.5 * step_running(state) * state.alone,
        prefill.passage(plan.bins.in_share),
        state.handover,
        share * (state.prompts.left + decode.step),
        jnp.maximum(steps - share, 0.0) * decode.step,
    )
    return jnp.where(_carried(state), jnp.stack(jnp.broadcast_arrays(*times)), jnp.inf)


@ttft_mean.register(AggregatedPlan)
def _ttft_mean(plan: AggregatedPlan, state: AggregatedState) -> Float[Array, "*c"]:
    return jnp.sum(_phases(plan, state)[:2], axis=0)


@tpot_mean.register(AggregatedPlan)
def _tpot_mean(
    plan: AggregatedPlan, state: AggregatedState, share: Float[Array, " m"]
) -> Float[Array, "*c"]:
    per_gap = jnp.sum(share / jnp.maximum(plan.lengths.gaps, 1.0))
    mean = state.decode.step + state.prompts.left * per_gap
    return jnp.where(_carried(state) & (jnp.sum(share) > 0.5), mean, jnp.inf)


@decode_mean.register(AggregatedPlan)
def _decode_mean(plan: AggregatedPlan, state: AggregatedState) -> Float[Array, "*c"]:
    return jnp.sum(_phases(plan, state)[3:], axis=0)


def _carried(state: AggregatedState) -> Array:
    return (state.prefill.load < 1.0) & (state.decode.full < 1.0)
