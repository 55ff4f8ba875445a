"""Distributions of TTFT, TPOT and, where asked for, more: means and quantiles at a rate.

The same shares that decide attainment, read the other way round.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf
from fluidserve.deploy.disaggregated import (
    Plan,
    State,
    decode_met,
    decoded_share,
    earliest_ttft,
    first_step,
    gaps_within,
    tpot_met,
    ttft_within,
)
from fluidserve.deploy.end_to_end import sum_within, time_grid
from fluidserve.deploy.promise import has_shares, own_shares
from fluidserve.specs.lengths import LengthBins
from fluidserve.specs.slo import Slo, limits_of, percentile_name

QUANTILES = (0.5, 0.9, 0.99)
PHASES = ("queue", "prefill", "handover", "first_step", "decode")
"""Where the time of a request goes, in this order: waiting for prefill; prefill; from its end to
the KV in the decode instance, wait for a slot included; from there to the end of the first decode
step; the other decode steps."""
_SHORTEST, _LONGEST = 1e-6, 1e6
STEPS = 48
"""Bisections that pin a quantile down to float32."""
_AMPLE = 4.0
"""Times P99 of TTFT: where its distribution may end for the sum with the decode time."""


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
      e2e_mean: mean time to the last token; None unless the promise limits it.
      e2e: its quantiles.
      itl_mean: mean gap between tokens, over all gaps; None unless the promise limits them.
      itl: quantiles over all gaps.

    Where limits have shares of their own, a last quantile of each is the one at that share.
    """

    ttft_mean: Leaf
    ttft: Leaf
    tpot_mean: Leaf
    tpot: Leaf
    phases: Leaf
    e2e_mean: Leaf | None = None
    e2e: Leaf | None = None
    itl_mean: Leaf | None = None
    itl: Leaf | None = None


def latencies(plan: Any, state: Any, steps: Leaf = STEPS, slo: Slo | None = None) -> Latencies:
    """Means and quantiles at the rate of `state`.

    Args:
      plan: the deployment, of any kind.
      state: its stages at a rate.
      steps: bisections of each quantile; with 0 the quantiles mean nothing and cost nothing.
      slo: the promise, which may ask for other quantiles, for end-to-end latency and for ITL.
    """
    slo = Slo() if slo is None else slo
    bins = plan.bins
    several = several_tokens(bins)

    def shares(times):
        ttft = jnp.tensordot(bins.in_share, ttft_within(plan, state, times[0]), axes=1)
        return jnp.stack([ttft, jnp.tensordot(several, tpot_met(plan, state, times[1]), axes=1)])

    levels, of_e2e, of_itl = levels_of(slo)
    like = state.handover
    ttft, tpot = jnp.swapaxes(quantiles(shares, jnp.stack([like] * 2), levels, steps), 0, 1)
    mean = ttft_mean(plan, state)
    e2e_mean = e2e = None
    if slo.e2e is not None:
        e2e_mean = mean + decode_mean(plan, state)
        e2e = _e2e_quantiles(plan, state, of_e2e, _AMPLE * ttft[2], steps)
    itl_mean = itl = None
    if slo.itl is not None:
        gaps = jnp.sum(bins.out_share * bins.gap_mean)
        itl_mean = decode_mean(plan, state) / jnp.maximum(gaps, 1e-6)
        itl = quantiles(lambda time: gaps_within(plan, state, time), like, of_itl, steps)
    return Latencies(
        ttft_mean=mean,
        ttft=ttft,
        tpot_mean=tpot_mean(plan, state, several),
        tpot=tpot,
        phases=phases(plan, state),
        e2e_mean=e2e_mean,
        e2e=e2e,
        itl_mean=itl_mean,
        itl=itl,
    )


def levels_of(slo: Slo) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Quantile levels of TTFT and TPOT, (p, 2) or (p), of end-to-end latency and of ITL, (p).

    Where limits have shares of their own, these follow `QUANTILES`; P90 stands for none.
    """
    usual = jnp.array(QUANTILES)
    if not has_shares(slo):
        return usual, usual, usual
    ttft, tpot, e2e, *itl = (
        jnp.where(jnp.asarray(share, usual.dtype) > 0.0, share, 0.9) for share in own_shares(slo)
    )
    pairs = jnp.concatenate([jnp.stack([usual, usual], axis=1), jnp.stack([ttft, tpot])[None]])
    return pairs, jnp.append(usual, e2e), jnp.append(usual, itl[0]) if itl else usual


def quantile_of(slo: Slo, metric: str) -> tuple[int, str]:
    """Which quantile of `Latencies` speaks for a metric, and its name.

    That of the limit's own share, or P90; for joint limits that over 95% of the requests must
    meet, P99.
    """
    share = {limit.metric: limit.share for limit in limits_of(slo)}.get(metric)
    if share is not None:
        return len(QUANTILES), percentile_name(share)
    return (2, "P99") if float(slo.attainment) > 0.95 else (1, "P90")


@functools.singledispatch
def decode_mean(plan: Plan, state: State) -> Float[Array, "*c"]:
    """Mean time from the first to the last token, s; ``inf`` where decode is overloaded."""
    decode = state.decode
    gaps = jnp.sum(plan.bins.out_share * plan.lengths.gaps)
    mean = gaps * decode.step
    if plan.system.first_token == "prefill":
        handed = 1.0 - plan.bins.out_share[0]
        mean = mean + handed * (state.handover + decode.joining() + decode.mean_wait())
    return jnp.where((decode.full < 1.0) & (state.link.load < 1.0), mean, jnp.inf)


def _e2e_quantiles(
    plan: Any, state: Any, levels: Float[Array, " p"], longest: Float[Array, "*c"], steps: Leaf
) -> Float[Array, "p *c"]:
    """Quantiles of end-to-end latency.

    The distribution of TTFT is computed once, up to `longest`; the bracket is narrow, and a third
    of the bisections does.
    """
    finite = jnp.isfinite(longest)
    times = time_grid(earliest_ttft(plan, state), jnp.where(finite, longest, 1.0))
    first = jax.vmap(lambda time: ttft_within(plan, state, time))(times)

    def share(time):
        rest = jnp.mean(decode_met(plan, state, time - times), axis=2)
        # what is left after a TTFT beyond the time is negative; a single token needs none of it
        rest = jnp.where((time >= times)[:, None], rest, 0.0)
        return sum_within(plan.bins.joint, first, rest)

    decoding = plan.lengths.gaps[-1] * state.decode.step_full + state.handover
    lowest = jnp.log(jnp.maximum(times[0], _SHORTEST))
    highest = jnp.log(longest + 2.0 * decoding + 10.0 * state.decode.mean_wait())
    ends = lowest, jnp.where(finite, highest, lowest + 1.0)
    found = quantiles(share, state.handover, levels, steps // 3, ends)
    return jnp.where(finite, found, jnp.inf)


def several_tokens(bins: LengthBins) -> Float[Array, " m"]:
    """Share of each output bin among the requests of two and more output tokens."""
    several = jnp.where(bins.gap_mean >= 0.5, bins.out_share, 0.0)
    return several / jnp.maximum(jnp.sum(several), 1e-9)


@functools.singledispatch
def ttft_mean(plan: Plan, state: State) -> Float[Array, "*c"]:
    """Mean TTFT, s; ``inf`` where a stage that it passes is overloaded."""
    until = 4 if plan.system.first_token == "decode" else 2
    # a request whose only token leaves with prefill is in no later phase
    times, carried = _reached(plan, state)
    return jnp.where(carried, jnp.sum(times[:until], axis=0), jnp.inf)


@functools.singledispatch
def phases(plan: Plan, state: State) -> Float[Array, "p *c"]:
    """Mean time that a request spends in each of `PHASES`, s; the sum is from arrival to its end.

    A mean over all requests: those whose only token leaves with prefill spend no time behind it.
    ``inf`` where any stage is overloaded, but for phases that no request is in.
    """
    times, carried = _reached(plan, state)
    share = decoded_share(plan)
    # nobody gets there where every request has one token, however overloaded it would be
    behind = jnp.where(share > 0.0, times[2:], 0.0) * share
    endless = ~carried & (share > 0.0)
    return jnp.concatenate(
        [jnp.where(carried, times[:2], jnp.inf), jnp.where(endless, jnp.inf, behind)]
    )


def _reached(plan: Plan, state: State) -> tuple[Float[Array, "p *c"], Bool[Array, "*c"]]:
    """The same over the requests that reach a phase, and whether all stages carry the rate."""
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
    return jnp.stack(jnp.broadcast_arrays(*times)), carried


@functools.singledispatch
def tpot_mean(plan: Plan, state: State, share: Float[Array, " m"]) -> Float[Array, "*c"]:
    """Mean TPOT over output bins weighted by `share`, s.

    ``inf`` where decode or the link is overloaded, or where `share` is empty because every request
    has a single output token.
    """
    decode = state.decode
    mean = decode.step
    if plan.system.first_token == "prefill":
        before = state.handover + decode.joining() + state.decode.mean_wait()
        per_gap = jnp.sum(share / jnp.maximum(plan.lengths.gaps, 1.0))
        mean = mean + before * per_gap
    defined = (decode.full < 1.0) & (state.link.load < 1.0) & (jnp.sum(share) > 0.5)
    return jnp.where(defined, mean, jnp.inf)


def quantiles(
    share,
    like: Float[Array, "*c"],
    levels: Float[Array, "p ..."],
    steps: Leaf,
    ends: tuple[Float[Array, "*c"], Float[Array, "*c"]] | None = None,
) -> Float[Array, "p *c"]:
    """Times at which increasing shares reach some levels, by bisection in the logarithm.

    Args:
      share: shares of requests within times; both have a metric on their first axis.
      like: an array of the shape of those times.
      levels: as they are, or one for each metric, on their last axis.
      steps: bisections.
      ends: logarithms between which to look; a millionth and a million seconds when left out.
    """
    if ends is None:
        ends = jnp.full_like(like, jnp.log(_SHORTEST)), jnp.full_like(like, jnp.log(_LONGEST))

    def solve(level):
        level = jnp.reshape(level, (*level.shape, *([1] * (like.ndim - level.ndim))))

        def halve(_, bracket):
            low, high = bracket
            middle = 0.5 * (low + high)
            reached = share(jnp.exp(middle)) >= level
            return jnp.where(reached, low, middle), jnp.where(reached, middle, high)

        _, high = lax.fori_loop(0, steps, halve, ends)
        return jnp.where(high > jnp.log(0.99 * _LONGEST), jnp.inf, jnp.exp(high))

    return jax.vmap(solve)(levels)
