"""A disaggregated deployment at one arrival rate: what share of the requests meets the SLO.

The three stages are evaluated one after the other - prefill pool, link, decode pool - and joined
under the assumption that, given its lengths, a request meets its TTFT independently of its TPOT
(in simulations of 19 deployments the joint share and the product agreed to 0.001).

Pull semantics: KV stays in prefill memory until a decode instance has a slot, then crosses the
link. When decode is full, prompts pile up in prefill memory; once that overflows, prefill stalls.

`ttft_within`, `tpot_met` and `earliest_ttft` are what differs between kinds of deployments, each
registered for the plan of its kind; what is made of them, such as end-to-end latency and quantiles,
is written once.

Arrays have their bins on the first axis and candidates on the rest.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr
from jaxtyping import Array, Float

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf
from fluidserve.deploy.end_to_end import sum_within, time_grid
from fluidserve.deploy.promise import (
    attainments,
    excess_of,
    has_shares,
    of_gaps_alone,
    reported,
)
from fluidserve.queueing.mgn import MAX_SERVERS
from fluidserve.specs.lengths import LengthBins
from fluidserve.specs.slo import Slo
from fluidserve.stages.decode import (
    LEAST_RATE,
    DecodeLengths,
    DecodeState,
    decode_lengths,
    decode_state,
    slots,
    step_time,
    tpot_within,
)
from fluidserve.stages.kv_link import LinkState, link_state
from fluidserve.stages.prefill import (
    Delay,
    PrefillShape,
    PrefillState,
    prefill_shape,
    prefill_state,
)
from fluidserve.stages.windowed import prompt_moments
from fluidserve.timing.instance import System
from fluidserve.timing.kv import tokens_held

NO_LIMIT = 1e9
"""Seconds that stand for no limit: beyond any latency, and finite for the arithmetic."""


@pytree
class Plan:
    """Everything about a deployment that does not depend on the rate.

    Attributes:
      system: the deployment.
      prefill: stage times of its prefill instances over the prompt bins.
      lengths: moments of the requests in decode.
      bins: the length distribution.
      arrival_scv: squared coefficient of variation between arrivals.
      dispersion: variance over mean of the arrivals per minute; only raises doubts.
      horizon: the first so many requests into an empty system are judged; None: steady state.
    """

    system: System
    prefill: PrefillShape
    lengths: DecodeLengths
    bins: LengthBins
    arrival_scv: Leaf
    dispersion: Leaf = 1.0
    horizon: Leaf | None = None


def prepare(system: System, bins: LengthBins, arrival_scv: Leaf = 1.0) -> Plan:
    """Precomputes what the rate does not change."""
    return Plan(
        system=system,
        prefill=prefill_shape(
            system.prefill,
            bins,
            system.prefix_hit,
            batch=system.prefill_batch,
            tokens=system.prefill_tokens,
        ),
        lengths=decode_lengths(bins, system.first_token, system.decode.kv),
        bins=bins,
        arrival_scv=arrival_scv,
    )


@pytree
class Metrics:
    """A deployment at one rate; every leaf has the shape of the candidates.

    Attributes:
      attainment: share of the requests that meet the joint limits together; all limits where
        each has a share of its own.
      excess: smallest of what the shares of the promise are above their targets; not negative
        where the promise is kept.
      ttft_attainment: share that meets TTFT.
      tpot_attainment: share that meets TPOT.
      prefill_load: busy share of the prefill pool's first stages.
      link_load: busy share of the link.
      decode_load: demand over the throughput of full decode instances.
      batch: mean requests in decode per instance.
      kv_use: mean share of the decode KV memory that is reserved.
      slot_waits: chance of waiting for a decode slot.
      prefill_memory: mean tokens held in prefill memory over what fits.
      overflow: chance that prompts waiting for a slot fill the prefill memory.
      e2e_attainment: share that meets the limit on end-to-end latency; None without one.
      itl_attainment: share of the gaps that meets the limit on ITL; None without one.
    """

    attainment: Leaf
    excess: Leaf
    ttft_attainment: Leaf
    tpot_attainment: Leaf
    prefill_load: Leaf
    link_load: Leaf
    decode_load: Leaf
    batch: Leaf
    kv_use: Leaf
    slot_waits: Leaf
    prefill_memory: Leaf
    overflow: Leaf
    e2e_attainment: Leaf | None = None
    itl_attainment: Leaf | None = None


@pytree
class State:
    """The three stages at one rate, and what happens between them.

    Attributes:
      prefill: the prefill pool.
      link: the link.
      decode: the decode pool.
      handover: mean time from getting a slot to being ready for decode, s.
      overflow: chance that prompts waiting for a slot fill the prefill memory.
    """

    prefill: PrefillState
    link: LinkState
    decode: DecodeState
    handover: Leaf
    overflow: Leaf


def at_rate(plan: Plan, rate: Float[Array, "*c"], *, max_replicas: int = MAX_SERVERS) -> State:
    """The stages at an arrival rate, 1/s."""
    system, bins = plan.system, plan.bins
    prefill = prefill_state(
        plan.prefill,
        system.n_prefill,
        rate,
        arrival_scv=plan.arrival_scv,
        dispatch=system.dispatch,
        max_replicas=max_replicas,
    )
    link = link_at(plan, rate, prefill_load=prefill.load, n_prefill=system.n_prefill)
    handover = link.wait + link.transfer + system.handover_overhead
    decode = decode_at(plan, rate, handover)
    held, _ = prompt_moments(bins, system.prefill.kv)
    overflow = overflow_of(
        rate,
        room=system.n_prefill * system.prefill.kv_capacity / held,
        passing=plan.prefill.mean * system.prefill.pp + handover,
        waits=decode.waits,
        drain=decode.drain,
    )
    return State(prefill=prefill, link=link, decode=decode, handover=handover, overflow=overflow)


def link_at(
    plan: Plan, rate: Float[Array, "*c"], *, prefill_load: Leaf, n_prefill: Leaf
) -> LinkState:
    """The link at an arrival rate, behind a prefill pool of that load and size."""
    prompt, prompt_square = prompt_moments(plan.bins, plan.system.kv)
    return link_state(
        rate * decoded_share(plan),
        plan.system.kv_bytes_per_token / plan.system.link_bandwidth,
        prompt,
        prompt_square,
        prefill_load=prefill_load,
        n_prefill=n_prefill,
    )


def decode_at(plan: Plan, rate: Float[Array, "*c"], handover: Float[Array, "*c"]) -> DecodeState:
    """The decode pool at an arrival rate, behind a hand-over that takes so long on average."""
    return decode_state(
        plan.system.decode,
        plan.lengths,
        plan.system.n_decode,
        rate,
        max_batch=plan.system.max_batch,
        transfer=handover,
        arrival_scv=plan.arrival_scv,
        dispatch=plan.system.dispatch,
    )


def overflow_of(rate: Array, *, room: Array, passing: Array, waits: Array, drain: Array) -> Array:
    """Chance that prompts waiting for a slot fill the prefill memory.

    Args:
      rate: requests, 1/s.
      room: prompts that the memory of the prefill pool holds.
      passing: mean time that a prompt is there without waiting for a slot, s.
      waits: chance of waiting for a slot.
      drain: rate of that wait, 1/s.
    """
    waiting_room = jnp.maximum(room - rate * passing, 0.0)
    # by Little's law a wait of w stands for rate * w requests ahead
    time_to_fill = waiting_room / jnp.where(rate > LEAST_RATE, rate, 1.0)
    return waits * jnp.exp(-drain * time_to_fill)


def decoded_share(plan: Plan):
    """Share of the requests that reach decode: all but single tokens sent out by prefill."""
    single = plan.bins.out_share[0] if plan.system.first_token == "prefill" else 0.0
    return 1.0 - single


@functools.singledispatch
def ttft_within(
    plan: Plan, state: State, limit: Float[Array, "..."] | float
) -> Float[Array, "q *c"]:
    """Share of each prompt bin whose TTFT is at most `limit`; ``inf`` is no limit."""
    decode, prefill, limit = state.decode, state.prefill, jnp.minimum(limit, NO_LIMIT)
    after = first_step(decode)
    in_time = prompts_within(plan, prefill, state.link, limit, after) * (1.0 - state.overflow)
    if plan.system.first_token == "prefill":
        return in_time
    typical = plan.prefill.mean * plan.prefill.pp + prefill.wait.mean * prefill.unit
    slack = jnp.maximum(limit - typical - state.handover - after, 0.0)
    has_slot = 1.0 - decode.waits * decode.late(slack)
    has_slot = jnp.where((decode.full < 1.0) & (state.link.load < 1.0), has_slot, 0.0)
    return in_time * has_slot


def prompts_within(
    plan: Plan, prefill: PrefillState, link: LinkState, limit: Leaf, after: Leaf
) -> Float[Array, "q *c"]:
    """Share of each prompt bin whose first token is out in time when a decode slot is free.

    Args:
      plan: the deployment.
      prefill: its prefill pool at a rate.
      link: its link at that rate; no part of it when the first token leaves with prefill.
      limit: on TTFT, s.
      after: time of the first decode step, s; likewise.
    """
    if plan.system.first_token == "prefill":
        return prefill.within(limit)
    system = plan.system
    per_token = system.kv_bytes_per_token / system.link_bandwidth
    bins = (plan.bins.in_low, plan.bins.in_high)
    edges = (jnp.reshape(e, (-1, *([1] * link.wait.ndim))) for e in bins)
    low, high = (tokens_held(system.kv, e) * per_token for e in edges)
    waits, drain = link.exponential()
    later = system.handover_overhead + after
    return prefill.within(limit - later, Delay(low=low, high=high, waits=waits, drain=drain))


def first_step(decode: DecodeState) -> Float[Array, "*c"]:
    """Mean time from joining decode to the end of the first step, s."""
    return decode.joining() + decode.step


@functools.singledispatch
def tpot_met(
    plan: Plan,
    state: State,
    limit: Float[Array, "..."] | float,
    gaps: Float[Array, " n"] | None = None,
) -> Float[Array, "n *c"]:
    """Share of each output bin whose TPOT is at most `limit`; ``inf`` is no limit.

    Args:
      plan: the deployment.
      state: its stages at a rate.
      limit: on the mean time per output token after the first, s.
      gaps: output lengths less one to tell it for, instead of the bins'.
    """
    lengths = plan.lengths if gaps is None else dataclasses.replace(plan.lengths, gaps=gaps)
    return tpot_within(
        state.decode,
        lengths,
        jnp.minimum(limit, NO_LIMIT),
        handover=state.handover,
        handover_var=handover_var(plan, state.link),
        first_token=plan.system.first_token,
    )


@functools.singledispatch
def gaps_within(plan: Plan, state: State, limit: Float[Array, "..."] | float) -> Float[Array, "*c"]:
    """Share of all gaps between tokens, of all requests together, that are at most `limit`, s.

    A gap is a decode step; where the first token leaves with prefill, the first gap of a request is
    the hand-over, the wait for a slot and the first step: its TPOT if it had two tokens.
    """
    decode, limit = state.decode, jnp.minimum(limit, NO_LIMIT)
    deviation = jnp.sqrt(decode.step_var + (1e-4 * decode.step) ** 2)
    steps = ndtr((limit - decode.step) / deviation)
    if plan.system.first_token == "prefill":
        first = first_gaps(plan.bins)
        steps = steps + first * (tpot_met(plan, state, limit, jnp.ones(1))[0] - steps)
    carried = (state.prefill.load < 1.0) & (state.link.load < 1.0) & (decode.full < 1.0)
    return jnp.where(carried, steps, 0.0)


def first_gaps(bins: LengthBins) -> Float[Array, ""]:
    """Share of the gaps that are the first ones of their requests."""
    gaps = jnp.sum(bins.out_share * bins.gap_mean)
    return jnp.minimum((1.0 - bins.out_share[0]) / jnp.maximum(gaps, 1e-6), 1.0)


@functools.singledispatch
def earliest_ttft(plan: Plan, state: State) -> Float[Array, "*c"]:
    """TTFT of the shortest prompt where nothing is in its way, s."""
    alone = plan.prefill.low[0] * plan.prefill.pp
    if plan.system.first_token == "prefill":
        return alone
    system = plan.system
    transfer = plan.bins.in_low[0] * system.kv_bytes_per_token / system.link_bandwidth
    return alone + transfer + system.handover_overhead + first_step(state.decode)


def decode_met(plan: Any, state: Any, time: Float[Array, "j *c"]) -> Float[Array, "j m k *c"]:
    """Share that decodes within `time`, s, by output bin and part of the bin.

    A request of g + 1 output tokens decodes for g times its TPOT.
    """
    nodes = _gap_nodes(plan.bins)
    gaps = jnp.reshape(nodes, -1)
    per_gap = jnp.reshape(jnp.maximum(gaps, 1.0), (-1, *([1] * jnp.ndim(state.handover))))
    limits = time[:, None] / per_gap
    within = jax.vmap(lambda limit: tpot_met(plan, state, limit, gaps))(limits)
    return jnp.reshape(within, (within.shape[0], *nodes.shape, *within.shape[2:]))


def _gap_nodes(bins: LengthBins) -> Float[Array, "m k"]:
    return bins.gap_mean[:, None] if bins.gap_nodes is None else bins.gap_nodes


def e2e_shares(
    plan: Any, state: Any, limit: Leaf, ttft_cap: Float[Array, "q *c"], tpot_cap: Leaf
) -> tuple[Float[Array, "*c"], Float[Array, "*c"]]:
    """Share that meets the end-to-end limit, and that which meets other limits as well.

    Args:
      plan: the deployment.
      state: its stages at a rate.
      limit: on end-to-end latency, s; ``inf`` is no limit.
      ttft_cap: share of each prompt bin that meets the limit on TTFT that is to hold too.
      tpot_cap: limit on TPOT that is to hold too, s.
    """
    limit = jnp.broadcast_to(jnp.minimum(limit, NO_LIMIT), jnp.shape(state.handover))
    times = time_grid(earliest_ttft(plan, state), limit)
    first = jax.vmap(lambda time: ttft_within(plan, state, time))(times)
    rest = decode_met(plan, state, limit - times)
    # a share grows with its limit, so that of two limits is the smaller one
    nodes = _gap_nodes(plan.bins)
    cap = tpot_met(plan, state, tpot_cap, jnp.reshape(nodes, -1))
    capped = jnp.minimum(rest, jnp.reshape(cap, (*nodes.shape, *cap.shape[1:])))
    joint = plan.bins.joint
    alone = sum_within(joint, first, jnp.mean(rest, axis=2))
    return alone, sum_within(joint, jnp.minimum(first, ttft_cap), jnp.mean(capped, axis=2))


def handover_var(plan: Plan, link: LinkState) -> Float[Array, "*c"]:
    """Variance of the hand-over: of the transfer by prompt length, of the exponential wait."""
    prompt, prompt_square = prompt_moments(plan.bins, plan.system.kv)
    spread = jnp.maximum(prompt_square / prompt**2 - 1.0, 0.0)
    waits, drain = link.exponential()
    return link.transfer**2 * spread + waits * (2.0 - waits) * (1.0 / drain) ** 2


def evaluate(
    plan: Plan, slo: Slo, rate: Float[Array, "*c"], *, max_replicas: int = MAX_SERVERS
) -> Metrics:
    """Attainment and utilisation at an arrival rate, 1/s.

    Attainment is 0 where a pool or the link cannot carry the rate.
    """
    return metrics_of(plan, slo, rate, at_rate(plan, rate, max_replicas=max_replicas))


def metrics_of(plan: Plan, slo: Slo, rate: Float[Array, "*c"], state: State) -> Metrics:
    """Attainment and utilisation out of the stages at `rate`, 1/s."""
    ttft = ttft_within(plan, state, slo.ttft)
    tpot = tpot_met(plan, state, slo.tpot)
    carried = (state.link.load < 1.0) & (state.prefill.load < 1.0) & (state.decode.full < 1.0)
    decode, system = state.decode, plan.system
    prompt, _ = prompt_moments(plan.bins, system.prefill.kv)
    held = plan.prefill.mean * system.prefill.pp + state.handover
    held = held + decode.mean_wait()
    met, e2e = met_together(plan, state, slo, ttft, tpot)
    itl = itl_met(plan, state, slo)
    attainment = jnp.where(carried, of_gaps_alone(slo, met, itl), 0.0)
    by_ttft, by_tpot = _mean(plan.bins.in_share, ttft), _mean(plan.bins.out_share, tpot)
    by_limit = jnp.where(carried, attainments(plan.bins, by_ttft, by_tpot, e2e, itl), 0.0)
    return Metrics(
        attainment=attainment,
        excess=excess_of(slo, attainment, by_limit),
        ttft_attainment=by_ttft,
        tpot_attainment=by_tpot,
        prefill_load=state.prefill.load,
        link_load=state.link.load,
        decode_load=decode.full,
        batch=decode.batch,
        kv_use=decode.batch * plan.lengths.reserved / system.decode.kv_capacity,
        slot_waits=decode.waits,
        prefill_memory=rate
        * prompt
        * held
        / jnp.maximum(system.n_prefill * system.prefill.kv_capacity, 1.0),
        overflow=state.overflow,
        e2e_attainment=e2e,
        itl_attainment=itl,
    )


def itl_met(plan: Any, state: Any, slo: Slo) -> Float[Array, "*c"] | None:
    """Share of the gaps that meets the limit on ITL, 1 where there are none; None without one."""
    if slo.itl is None:
        return None
    single = plan.bins.out_share[0] > 1.0 - 1e-6
    return jnp.where(single, 1.0, gaps_within(plan, state, slo.itl))


def met_together(plan: Any, state: Any, slo: Slo, ttft, tpot):
    """Share that meets the limits of the joint attainment, and that which meets the end-to-end one.

    Args:
      plan: the deployment.
      state: its stages at a rate.
      slo: the promise.
      ttft: share of each prompt bin that meets TTFT.
      tpot: share of each output bin that meets TPOT.
    """
    tpot_limit = slo.tpot
    e2e_counts = True
    if has_shares(slo):
        ttft_counts, tpot_counts, e2e_counts = reported(slo)
        ttft = jnp.where(ttft_counts, ttft, 1.0)
        tpot = jnp.where(tpot_counts, tpot, 1.0)
        tpot_limit = jnp.where(tpot_counts, slo.tpot, NO_LIMIT)
    joint = jnp.tensordot(plan.bins.joint, tpot, axes=1)
    both = jnp.sum(joint * ttft, axis=0)
    if slo.e2e is None:
        return both, None
    alone, together = e2e_shares(plan, state, slo.e2e, ttft, tpot_limit)
    return jnp.where(e2e_counts, together, both), alone


def _mean(share: Float[Array, " q"], values: Float[Array, "q *c"]) -> Float[Array, "*c"]:
    return jnp.tensordot(share, values, axes=1)


def largest_rate(plan: Plan) -> tuple[Float[Array, "*c"], Float[Array, "*c"], Float[Array, "*c"]]:
    """Rates that saturate the prefill pool, the link and the decode pool, 1/s.

    The decode pool saturates when every slot is taken all the time.
    """
    system, lengths = plan.system, plan.lengths
    prefill = system.n_prefill / plan.prefill.busiest
    prompt, _ = prompt_moments(plan.bins, system.kv)
    per_request = system.kv_bytes_per_token * prompt / system.link_bandwidth
    link = 1.0 / jnp.maximum(per_request * decoded_share(plan), 1e-12)
    nothing = jnp.zeros_like(prefill)
    room = slots(system.decode, lengths, system.max_batch, nothing)
    per_slot = lengths.mean_steps * step_time(system.decode, lengths, room)
    decode = system.n_decode * room / per_slot
    return prefill, jnp.broadcast_to(link, prefill.shape), decode
