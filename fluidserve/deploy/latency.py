"""Distributions of TTFT and TPOT of a deployment at a rate: means and quantiles.

The same shares that decide attainment, read the other way round.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf
from fluidserve.deploy.disaggregated import (
    Plan,
    State,
    decoded_share,
    first_step,
    tpot_met,
    ttft_within,
)

QUANTILES = (0.5, 0.9, 0.99)
PHASES = ("queue", "prefill", "handover", "first_step", "decode")
"""Where the time of a request goes, in this order: waiting for prefill; prefill; from its end to
the KV in the decode instance, wait for a slot included; from there to the end of the first decode
step; the other decode steps."""
_SHORTEST, _LONGEST = 1e-6, 1e6
STEPS = 48
"""Bisections that pin a quantile down to float32."""


@pytree
class Latencies:
    """Latencies over the requests, s; quantile levels on the first axis.

    Attributes:
      ttft_mean: mean time to first token; ``inf`` where a stage is overloaded.
      ttft: its quantiles at `QUANTILES`.
      tpot_mean: mean over the requests with two and more output tokens.
      tpot: its quantiles over the same requests.
      phases: mean time of each of `PHASES`, first axis in that order; ``inf`` where a stage is
        overloaded.
    """

    ttft_mean: Leaf
    ttft: Leaf
    tpot_mean: Leaf
    tpot: Leaf
    phases: Leaf


def latencies(plan: Plan, state: State, steps: Leaf = STEPS) -> Latencies:
    """Means and quantiles at the rate of `state`.

    Args:
      plan: the deployment.
      state: its stages at a rate.
      steps: bisections of each quantile; with 0 the quantiles mean nothing and cost nothing.
    """
    bins = plan.bins
    several = jnp.where(bins.gap_mean >= 0.5, bins.out_share, 0.0)
    several = several / jnp.maximum(jnp.sum(several), 1e-9)

    def shares(times):
        ttft = jnp.tensordot(bins.in_share, ttft_within(plan, state, times[0]), axes=1)
        return jnp.stack([ttft, jnp.tensordot(several, tpot_met(plan, state, times[1]), axes=1)])

    ttft, tpot = jnp.swapaxes(quantiles(shares, jnp.stack([state.handover] * 2), steps), 0, 1)
    return Latencies(
        ttft_mean=ttft_mean(plan, state),
        ttft=ttft,
        tpot_mean=tpot_mean(plan, state, several),
        tpot=tpot,
        phases=phases(plan, state),
    )


def ttft_mean(plan: Plan, state: State) -> Float[Array, "*c"]:
    """Mean TTFT, s; ``inf`` where a stage that it passes is overloaded."""
    until = 4 if plan.system.first_token == "decode" else 2
    # a request whose only token leaves with prefill is in no later phase
    return jnp.sum(_reached(plan, state)[:until], axis=0)


def phases(plan: Plan, state: State) -> Float[Array, "p *c"]:
    """Mean time that a request spends in each of `PHASES`, s; the sum is from arrival to its end.

    A mean over all requests: those whose only token leaves with prefill spend no time behind it.
    ``inf`` where any stage is overloaded.
    """
    times = _reached(plan, state)
    share = decoded_share(plan)
    return jnp.concatenate([times[:2], times[2:] * share])


def _reached(plan: Plan, state: State) -> Float[Array, "p *c"]:
    """The same over the requests that reach a phase."""
    prefill, decode = state.prefill, state.decode
    steps = plan.lengths.mean_steps / jnp.maximum(decoded_share(plan), 1e-6)
    times = (
        prefill.wait.mean * prefill.unit,
        prefill.passage(plan.bins.in_share),
        state.handover + decode.mean_wait(),
        first_step(decode),
        (steps - 1.0) * decode.step,
    )
    # an overloaded decode pool or link fills the prefill memory in the end
    carried = (prefill.load < 1.0) & (decode.full < 1.0) & (state.link.load < 1.0)
    return jnp.where(carried, jnp.stack(jnp.broadcast_arrays(*times)), jnp.inf)


def tpot_mean(plan: Plan, state: State, share: Float[Array, " m"]) -> Float[Array, "*c"]:
    """Mean TPOT over output bins weighted by `share`, s.

    ``inf`` where decode or the link is overloaded, or where `share` is empty because every request
    has a single output token.
    """
    decode = state.decode
    mean = decode.step
    if plan.system.first_token == "prefill":
        before = state.handover + 0.5 * decode.step + state.decode.mean_wait()
        per_gap = jnp.sum(share / jnp.maximum(plan.lengths.gaps, 1.0))
        mean = mean + before * per_gap
    defined = (decode.full < 1.0) & (state.link.load < 1.0) & (jnp.sum(share) > 0.5)
    return jnp.where(defined, mean, jnp.inf)


def quantiles(share, like: Float[Array, "*c"], steps: Leaf) -> Float[Array, "p *c"]:
    """Times at which increasing shares reach `QUANTILES`, by bisection in the logarithm.

    Args:
      share: shares of requests within times; both have a metric on their first axis.
      like: an array of the shape of those times.
      steps: bisections.
    """

    def solve(level):
        def halve(_, bracket):
            low, high = bracket
            middle = 0.5 * (low + high)
            reached = share(jnp.exp(middle)) >= level
            return jnp.where(reached, low, middle), jnp.where(reached, middle, high)

        ends = jnp.full_like(like, jnp.log(_SHORTEST)), jnp.full_like(like, jnp.log(_LONGEST))
        _, high = lax.fori_loop(0, steps, halve, ends)
        return jnp.where(high > jnp.log(0.99 * _LONGEST), jnp.inf, jnp.exp(high))

    return jax.vmap(solve)(jnp.array(QUANTILES))
