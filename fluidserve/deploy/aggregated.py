r"""A deployment whose instances do both phases, at one arrival rate: who meets the SLO.

Two schedulers, one description. Where prompts go first, prefill is a queue that takes several
prompts at once (`queueing.batch`), behind the decode step that is running; decode pauses
meanwhile. In chunked prefill, an iteration of n decoding requests has room for :math:`C` tokens of
prompts, which add to it what they cost beside the decode step :math:`\tau(n)`. A prompt of L tokens
takes

.. math:: s(L) = \tau\,\max(L/C, 1) + \beta L, \qquad \beta = (t(n + C) - \tau)/C

when prompts fill the iterations; alone it takes whole iterations and one for the rest. Prompts that
share an iteration share its :math:`\tau`, so that prefill is the same queue of batches with the
fixed part :math:`\tau`; between the two costs the load of the prompts decides.

Arrays have their bins on the first axis and candidates on the rest.

Ignores: that the batch varies while a prompt is computed; preemption; prompts that wait for KV
memory beyond the exponential wait for a slot.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf
from fluidserve.deploy.disaggregated import (
    NO_LIMIT,
    Metrics,
    earliest_ttft,
    itl_met,
    met_together,
    tpot_met,
    ttft_within,
)
from fluidserve.deploy.promise import attainments, excess_of, of_gaps_alone
from fluidserve.specs.lengths import LengthBins
from fluidserve.specs.slo import Slo
from fluidserve.stages.chunks import beside, chunked_shape, mean_pieces
from fluidserve.stages.decode import (
    DecodeLengths,
    DecodeState,
    decode_lengths,
    decode_state,
    slots,
    step_time,
)
from fluidserve.stages.interrupted import (
    LEAST_LEFT,
    Interruptions,
    PausedTimes,
    SharedTimes,
    interrupted_tpot_within,
    with_bubbles,
)
from fluidserve.stages.prefill import (
    MOST_TOGETHER,
    PrefillShape,
    PrefillState,
    prefill_shape,
    prefill_state,
)
from fluidserve.stages.split import scv_at_one
from fluidserve.timing.instance import AggregatedSystem

_LEAST_BATCH = 1e-6
_NODES = (0.2113249, 0.7886751)
"""Parts of a running step that are still to come, for two halves of the arrivals (Gauss)."""


@pytree
class AggregatedPlan:
    """Everything about a deployment that does not depend on the rate.

    Attributes:
      system: the deployment.
      prefill: stage times of whole prompts on an instance that does nothing else.
      lengths: moments of the requests in decode.
      bins: the length distribution.
      arrival_scv: squared coefficient of variation between arrivals.
      dispersion: variance over mean of the arrivals per minute; only raises doubts.
    """

    system: AggregatedSystem
    prefill: PrefillShape
    lengths: DecodeLengths
    bins: LengthBins
    arrival_scv: Leaf
    dispersion: Leaf = 1.0


def prepare_aggregated(
    system: AggregatedSystem, bins: LengthBins, arrival_scv: Leaf = 1.0
) -> AggregatedPlan:
    """Precomputes what the rate does not change."""
    return AggregatedPlan(
        system=system,
        prefill=prefill_shape(
            system.instance,
            bins,
            system.prefix_hit,
            batch=MOST_TOGETHER,
            tokens=system.prefill_tokens,
            pipelines=False,
        ),
        lengths=_lengths(system, bins),
        bins=bins,
        arrival_scv=arrival_scv,
    )


def _lengths(system: AggregatedSystem, bins: LengthBins) -> DecodeLengths:
    """Moments of the requests, and what of the memory they take under the policy.

    Where requests are admitted with room for their prompt, they hold what they have so far. That
    some are computed anew is left out.
    """
    lengths = decode_lengths(bins, "prefill", system.instance.kv)
    if system.kv_policy == "reserve" or system.instance.kv is not None:
        return lengths
    prompt = jnp.sum(bins.in_share * bins.in_mean)
    return dataclasses.replace(
        lengths,
        reserved=lengths.context,
        reserved_var=lengths.context_var,
        leftover=prompt,
    )


@pytree
class AggregatedState:
    """An aggregated deployment at one rate; leaves have the shape of the candidates.

    Attributes:
      prefill: the queue for prefill.
      decode: decode, its steps as long as prompts make them.
      alone: mean time of a step that holds no prompt, s.
      prompts: what prompts do to decode.
      taken: share of the time that they take from it.
      handover: nothing is handed over: 0 s.
    """

    prefill: PrefillState
    decode: DecodeState
    alone: Leaf
    prompts: Interruptions
    taken: Leaf
    handover: Leaf


def aggregated_at(plan: AggregatedPlan, rate: Float[Array, "*c"]) -> AggregatedState:
    """The deployment at an arrival rate, 1/s."""
    if plan.system.token_budget is None:
        return _prompts_first(plan, rate)
    return _in_pieces(plan, rate)


def _queue(
    plan: AggregatedPlan, shape: PrefillShape, per_instance: Float[Array, "*c"]
) -> tuple[PrefillState, Array]:
    """The queue of one instance for prefill, and the variability of the arrivals there.

    Rules that look at the instances see mostly requests that decode: an instance that took a prompt
    is one of the fuller ones for a while, whatever waits there, so that arrivals are about half as
    regular as in turn.
    """
    system, rule = plan.system, plan.system.dispatch
    scv = jnp.asarray(plan.arrival_scv)
    if rule in ("random", "round-robin"):
        scv = scv_at_one(rule, scv, system.replicas)
    else:
        scv = 0.5 * (scv + scv_at_one("round-robin", scv, system.replicas))
    one = jnp.ones_like(per_instance)
    found = prefill_state(
        shape, one, per_instance, arrival_scv=scv, dispatch="random", max_replicas=1
    )
    return found, scv


def _prompts_first(plan: AggregatedPlan, rate) -> AggregatedState:
    system, shape = plan.system, plan.prefill
    per_instance = rate / system.replicas
    prefill, arrivals = _queue(plan, shape, per_instance)
    taken = with_bubbles(prefill.load, shape.pp)
    paused = dataclasses.replace(
        system.instance, times=PausedTimes(times=system.instance.times, load=taken)
    )
    decode = decode_state(
        paused,
        plan.lengths,
        system.replicas,
        rate,
        max_batch=system.max_batch,
        transfer=shape.mean * shape.pp,
        arrival_scv=plan.arrival_scv,
        dispatch=system.dispatch,
    )
    left = jnp.maximum(1.0 - taken, LEAST_LEFT)
    square = shape.mean**2 * (arrivals + shape.scv)
    alone = decode.step * left
    prompts = Interruptions(
        left=taken * shape.mean * shape.pp / left - (decode.step - alone),
        spread=alone * per_instance * square / left**3,
        longest=jnp.full_like(alone, jnp.inf),
    )
    return AggregatedState(
        prefill=prefill,
        decode=decode,
        alone=alone,
        prompts=prompts,
        taken=taken,
        handover=jnp.zeros_like(alone),
    )


def _in_pieces(plan: AggregatedPlan, rate) -> AggregatedState:
    system, instance = plan.system, plan.system.instance
    per_instance = rate / system.replicas
    times = _shared_times(plan, per_instance)
    nothing = instance.decode_work(jnp.ones_like(rate), plan.lengths.context)
    decode = decode_state(
        dataclasses.replace(instance, times=times),
        plan.lengths,
        system.replicas,
        rate,
        max_batch=_largest_batch(plan),
        transfer=times.added(nothing)[1] * instance.pp,
        arrival_scv=plan.arrival_scv,
        dispatch=system.dispatch,
    )
    lane = jnp.maximum(decode.batch / instance.pp, _LEAST_BATCH)
    mixed = beside(times, instance, plan.lengths, lane, 0.0 * rate)
    taken = jnp.clip(with_bubbles(per_instance * mixed.added, instance.pp), 0.0, 1.0)
    mixed = dataclasses.replace(mixed, crowd=taken)
    shape, extra = chunked_shape(mixed, plan.bins, system.prefix_hit)
    prefill, arrivals = _queue(plan, shape, per_instance)
    share = jnp.reshape(plan.bins.in_share, (-1, *([1] * jnp.ndim(rate))))
    typical = jnp.sum(share * extra, axis=0)
    square = jnp.sum(share * extra**2, axis=0) - (1.0 - arrivals) * typical**2
    square = jnp.maximum(square, 0.0)  # equal prompts in equal gaps cancel
    left = jnp.maximum(1.0 - taken, LEAST_LEFT)
    alone = mixed.alone * instance.pp
    last = jnp.minimum(shape.mean, mixed.full) * instance.pp
    crowded = beside(
        times,
        instance,
        plan.lengths,
        jnp.maximum(decode.slots / instance.pp, 1.0),
        taken,
    )
    longest = instance.times.stage_time(crowded.batch + crowded.pieces.work(crowded.room))
    return AggregatedState(
        prefill=prefill,
        decode=decode,
        alone=alone,
        prompts=Interruptions(
            left=per_instance * typical * last - (decode.step - alone),
            spread=alone * per_instance * square / left**3,
            longest=longest * instance.pp,
        ),
        taken=taken,
        handover=jnp.zeros_like(alone),
    )


def _largest_batch(plan: AggregatedPlan) -> Array:
    """Requests that an instance decodes at most.

    Where iterations of a full budget are split between tokens of prompts and of decode as requests
    need them, more requests in decode would leave prompts behind.
    """
    system, instance = plan.system, plan.system.instance
    if system.token_budget is None:
        return jnp.asarray(system.max_batch)
    steps = plan.lengths.mean_steps
    tokens = mean_pieces(instance, plan.bins, system.token_budget, system.prefix_hit).tokens
    balanced = instance.pp * system.token_budget * steps / (steps + tokens)
    return jnp.minimum(system.max_batch, jnp.maximum(balanced, 1.0))


def _shared_times(plan: AggregatedPlan, per_instance: Leaf) -> SharedTimes:
    """Iterations that hold pieces of so many prompts per second."""
    system, instance = plan.system, plan.system.instance
    assert system.token_budget is not None
    return SharedTimes(
        times=instance.times,
        pieces=mean_pieces(instance, plan.bins, system.token_budget, system.prefix_hit),
        rate=per_instance,
        pp=instance.pp,
    )


@ttft_within.register(AggregatedPlan)
def _ttft_within(
    plan: AggregatedPlan, state: AggregatedState, limit: Float[Array, "..."] | float
) -> Float[Array, "q *c"]:
    decode, prefill, limit = state.decode, state.prefill, jnp.minimum(limit, NO_LIMIT)
    running = step_running(state)
    met = 0.0
    for part in _NODES:
        met = met + 0.5 * prefill.within(limit - part * running * state.alone)
    typical = prefill.mean * prefill.pp + prefill.wait.mean * prefill.unit
    slack = jnp.maximum(limit - typical - 0.5 * state.alone, 0.0)
    has_slot = 1.0 - decode.waits * decode.late(slack)
    return met * jnp.where(decode.full < 1.0, has_slot, 0.0)


@tpot_met.register(AggregatedPlan)
def _tpot_met(
    plan: AggregatedPlan,
    state: AggregatedState,
    limit: Float[Array, "..."] | float,
    gaps: Float[Array, " n"] | None = None,
) -> Float[Array, "n *c"]:
    lengths = plan.lengths if gaps is None else dataclasses.replace(plan.lengths, gaps=gaps)
    within = jnp.minimum(limit, NO_LIMIT)
    return interrupted_tpot_within(state.decode, lengths, within, state.prompts)


@earliest_ttft.register(AggregatedPlan)
def _earliest_ttft(plan: AggregatedPlan, state: AggregatedState) -> Float[Array, "*c"]:
    return state.prefill.low[0] * state.prefill.pp


def step_running(state: AggregatedState) -> Float[Array, "*c"]:
    """Chance that an arrival finds a decode step under way: unless nobody decodes."""
    return -jnp.expm1(-state.decode.batch / state.prefill.pp)


def aggregated_metrics(plan: AggregatedPlan, slo: Slo, state: AggregatedState) -> Metrics:
    """Attainment and utilisation at the rate of `state`; nothing is handed over."""
    ttft = ttft_within(plan, state, slo.ttft)
    tpot = tpot_met(plan, state, slo.tpot)
    decode, bins = state.decode, plan.bins
    carried = (state.prefill.load < 1.0) & (decode.full < 1.0)
    met, e2e = met_together(plan, state, slo, ttft, tpot)
    itl = itl_met(plan, state, slo)
    attainment = jnp.where(carried, of_gaps_alone(slo, met, itl), 0.0)
    by_ttft = jnp.tensordot(bins.in_share, ttft, axes=1)
    by_tpot = jnp.tensordot(bins.out_share, tpot, axes=1)
    by_limit = jnp.where(carried, attainments(bins, by_ttft, by_tpot, e2e, itl), 0.0)
    nothing = jnp.zeros_like(attainment)
    return Metrics(
        attainment=attainment,
        excess=excess_of(slo, attainment, by_limit),
        ttft_attainment=by_ttft,
        tpot_attainment=by_tpot,
        prefill_load=state.taken,
        link_load=nothing,
        decode_load=decode.full,
        batch=decode.batch,
        kv_use=decode.batch * plan.lengths.reserved / plan.system.instance.kv_capacity,
        slot_waits=decode.waits,
        prefill_memory=nothing,
        overflow=nothing,
        e2e_attainment=e2e,
        itl_attainment=itl,
    )


def largest_aggregated_rate(plan: AggregatedPlan) -> Float[Array, "*c"]:
    """Rate at which full instances spend all their time, 1/s: prompts and decode steps together."""
    system, lengths, instance = plan.system, plan.lengths, plan.system.instance
    one = jnp.ones_like(plan.prefill.mean)
    room = slots(instance, lengths, _largest_batch(plan), 0.0 * one)
    step = step_time(instance, lengths, room)
    if system.token_budget is None:
        prompt = plan.prefill.busiest
    else:
        times = _shared_times(plan, 0.0)
        lane = jnp.maximum(room / instance.pp, 1.0)
        prompt = times.added(instance.decode_work(lane, lane * lengths.context))[1]
    return system.replicas / (prompt + lengths.mean_steps * step / room)
