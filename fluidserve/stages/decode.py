r"""The decode pool: batches that grow until throughput meets demand, and the TPOT they give.

A decode instance serves all its requests at once, the slower the more there are: processor sharing
with a step time :math:`\tau(n)`. For Poisson arrivals the number in such a system depends on the
output lengths only through their mean (Cohen 1979), and with an affine step time it is negative
binomial. Here the step time is linearised at the batch that carries the load, which keeps those
moments for any smooth step time:

.. math::
   \bar n = a\,\tau(\bar n + 1/k), \qquad \mathrm{Var}\,n = \bar n / (k (1 - a\tau'))

with a the decode steps asked of an instance per second and k the instances that a least-loaded
dispatch lets act as one (1 where they are taken in turn or at random). A request sees the average
of the step time over its own life, so the variance shrinks with its length over the relaxation
time. Slots are limited by KV memory and by the batch cap; beyond them requests wait. The wait is
exponential, with the heavy-traffic rate of a queue whose jobs are as variable as reservation times
decode steps; the chance of it is the mass of the batch, and of its varying KV, beyond the slots.

Arrays have their bins on the first axis and candidates on the rest.

Ignores: preemption; the smoothing of arrivals by the prefill pool; lanes that a backlog
leaves unequal.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fluidserve._numerics import ratio
from fluidserve._pytree import pytree
from fluidserve._typing import Leaf
from fluidserve.specs.deployment import Dispatch
from fluidserve.specs.lengths import LengthBins
from fluidserve.stages.split import acting_together, scv_at_one
from fluidserve.stages.windowed import (
    Reservations,
    Windowed,
    held_reservations,
    windowed_contexts,
)
from fluidserve.timing.instance import Instance
from fluidserve.timing.kv import KvShape
from fluidserve.timing.profile import FirstToken

LEAST_RATE = 1e-18
"""Rates, 1/s, below which nothing comes: what is divided by them has finite slopes in float32."""

_NEWTON_STEPS = 6
_LEAST_SLOPE, _LEAST_SPREAD = 1e-18, 1e-30
_FULL = 1.0 - 1e-3
_SMALLEST_VARIABILITY = 1e-3
_SHORTEST_REST = 0.25
_LANE_COUNTS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 32.0)
_LARGEST_OF_NORMALS = (0.0, 0.564, 0.846, 1.029, 1.163, 1.267, 1.424, 1.629, 1.766, 2.070)
"""Mean of the largest of so many standard normals (Harter 1961)."""


@pytree
class DecodeLengths:
    """What decode needs of the lengths. Scalars, or bins of shape ``(m,)``.

    Attributes:
      steps: decode steps of a request in each output bin, (m,).
      gaps: gaps that its TPOT is averaged over, (m,).
      mean_steps: mean decode steps of a request.
      context: mean context of an active request, tokens.
      context_var: its variance over the active requests.
      reserved: mean KV reservation of an active request, tokens.
      reserved_var: variance of the reservation over the active requests, tokens**2.
      hold_scv: squared coefficient of variation of reservation times decode steps, the share of
        the KV memory that a request takes and for how long.
      steps_scv: the same of the decode steps alone.
      residual: mean steps that an active request still has to go.
      leftover: tokens that the head of the line cannot use on average, ``E R**2 / (2 E R)``.
      windowed: tokens within the window of an active request; None where every layer keeps
        everything. With it, this and what is said of reservations have the shape of the instances.
    """

    steps: Leaf
    gaps: Leaf
    mean_steps: Leaf
    context: Leaf
    context_var: Leaf
    reserved: Leaf
    reserved_var: Leaf
    hold_scv: Leaf
    steps_scv: Leaf
    residual: Leaf
    leftover: Leaf
    windowed: Windowed | None = None

    def of(self, index: Array) -> "DecodeLengths":
        """The lengths as the instances at `index` hold them."""
        if self.windowed is None:
            return self
        mine = ("reserved", "reserved_var", "hold_scv", "leftover", "windowed")
        picked = {
            name: jax.tree.map(lambda leaf: leaf[..., index], getattr(self, name)) for name in mine
        }
        return dataclasses.replace(self, **picked)


def decode_lengths(
    bins: LengthBins, first_token: FirstToken, kv: KvShape | None = None
) -> DecodeLengths:
    """Length-biased moments of the requests in decode.

    A request of ``g + 1`` output tokens takes g steps when its first token left with prefill, and
    one more when the first decode step makes it.

    Args:
      bins: the lengths.
      first_token: where the first token leaves.
      kv: what of its tokens a request holds on the instances; None for all.
    """
    extra = 0.0 if first_token == "prefill" else 1.0
    w, g = bins.out_share, bins.gap_mean
    o = g + extra
    o2 = bins.gap_square + 2.0 * extra * g + extra
    o3 = bins.gap_cube + 3.0 * extra * bins.gap_square + 3.0 * extra * g + extra
    prompt, prompt2 = bins.in_given_out, bins.in_square_given_out
    mean = jnp.maximum(jnp.sum(w * o), 1e-6)
    # at its j-th step a request attends its prompt and the j tokens made so far
    own = 0.5 * (o2 + o) if first_token == "prefill" else 0.5 * (o2 - o)
    context = jnp.sum(w * (o * prompt + own)) / mean
    age2 = jnp.sum(w * (o * prompt2 + o2 * prompt + o3 / 3.0)) / mean
    age = jnp.sum(w * (o * prompt + 0.5 * o2)) / mean
    reserved = prompt + g + 1.0
    reserved2 = prompt2 + 2.0 * prompt * (g + 1.0) + bins.gap_square + 2.0 * g + 1.0
    active = jnp.sum(w * (o * prompt + bins.gap_square + g * (1.0 + extra) + extra)) / mean
    windowed = None
    shares, steps, steps2 = w, o, o2
    if kv is not None:
        everything = Reservations(mean=reserved, square=reserved2, active=active)
        held = held_reservations(bins, kv, o, everything)
        reserved, reserved2, active = held.mean, held.square, held.active
        windowed = windowed_contexts(bins, kv, o, first_token)
        shape = (-1, *([1] * jnp.ndim(kv.window)))
        shares, steps, steps2 = (jnp.reshape(x, shape) for x in (w, o, o2))
    active = jnp.where(active > 0.0, active, 1.0)  # nobody decodes, or nothing is held
    active2 = jnp.sum(shares * steps * reserved2, axis=0) / mean
    hold2 = jnp.sum(shares * (steps2 / mean**2) * (reserved2 / active**2), axis=0)
    square, first = (jnp.sum(shares * x, axis=0) for x in (reserved2, reserved))
    return DecodeLengths(
        steps=o,
        gaps=g,
        mean_steps=mean,
        context=context,
        context_var=jnp.maximum(age2 - age**2, 0.0),
        reserved=active,
        reserved_var=jnp.maximum(active2 - active**2, 0.0),
        hold_scv=jnp.maximum(hold2 - 1.0, 0.0),
        steps_scv=jnp.maximum(jnp.sum(w * o2) / mean**2 - 1.0, 0.0),
        residual=jnp.maximum(jnp.sum(w * o2) / (2.0 * mean), _SHORTEST_REST),
        leftover=square / (2.0 * first),
        windowed=windowed,
    )


@pytree
class DecodeState:
    """A decode pool at one arrival rate; all leaves have the shape of the candidates.

    Attributes:
      batch: mean requests per instance in decode.
      slots: requests that an instance can hold.
      full: load when all slots are taken, as a share of capacity; may exceed 1.
      step: mean time of a decode step, s.
      step_var: variance of the step time over time, s**2.
      relaxation: steps over which the step time forgets its past.
      step_full: step time with all slots taken, s.
      waits: chance that a request waits for a slot.
      drain: rate of the exponential wait for a slot, 1/s.
      sure: part of that wait that all who wait have in common, s; None is none.
      met: requests that a newcomer finds in its lane; None is as many as in the batch.
    """

    batch: Leaf
    slots: Leaf
    full: Leaf
    step: Leaf
    step_var: Leaf
    relaxation: Leaf
    step_full: Leaf
    waits: Leaf
    drain: Leaf
    sure: Leaf | None = None
    met: Leaf | None = None

    def late(self, slack: Float[Array, "..."]) -> Float[Array, "..."]:
        """Chance that a wait for a slot takes longer than `slack` seconds, given that it occurs."""
        if self.sure is not None:
            slack = slack - self.sure
        return jnp.exp(-self.drain * jnp.maximum(slack, 0.0))

    def joining(self) -> Float[Array, "*c"]:
        """Mean time until the running step ends, half of it where one is running, s."""
        return joining_time(self.step, self.found())

    def found(self) -> Float[Array, "*c"]:
        """Requests that a newcomer finds in its lane."""
        return self.batch if self.met is None else jnp.maximum(self.met, 0.0)

    def mean_wait(self) -> Float[Array, "*c"]:
        """Mean wait for a slot over all requests, s."""
        if self.sure is None:
            return self.waits / jnp.maximum(self.drain, 1e-9)
        return self.waits * (self.sure + 1.0 / jnp.maximum(self.drain, 1e-9))


def joining_time(step: Float[Array, "..."], found: Float[Array, "..."]) -> Float[Array, "..."]:
    """Mean time until a step ends that runs while a lane holds a request, s; see `DecodeState`."""
    return 0.5 * step * jnp.minimum(found, 1.0)


def step_time(
    instance: Instance, lengths: DecodeLengths, batch: Float[Array, "*c"]
) -> Float[Array, "*c"]:
    """Time of one decode step of an instance that holds `batch` requests, s.

    The batch is spread evenly over `pp` lanes, each of which passes all stages once per step.
    """
    lane = jnp.maximum(batch / instance.pp, 1.0)
    return instance.pp * _stage_time(instance, lengths, lane, lane * lengths.context)


def _stage_time(instance: Instance, lengths: DecodeLengths, batch, context):
    """Time of one stage for one decode step of `batch` requests of `context` tokens together, s."""
    if lengths.windowed is None:
        return instance.decode_time(batch, context)
    windowed = lengths.windowed.level * batch + lengths.windowed.slope * context
    return instance.decode_time(batch, context, windowed)


def slots(
    instance: Instance, lengths: DecodeLengths, max_batch: Leaf, in_transfer: Float[Array, "*c"]
) -> Float[Array, "*c"]:
    """Requests that an instance can decode at once, at least one.

    Limited by the batch cap and by the KV memory, less what the head of the line cannot use and
    what requests in transfer already hold.
    """
    return jnp.maximum(jnp.minimum(max_batch, slot_room(instance, lengths)) - in_transfer, 1.0)


def slot_room(instance: Instance, lengths: DecodeLengths) -> Float[Array, "*c"]:
    """Requests whose KV fits into the memory of an instance on average."""
    return (instance.kv_capacity - lengths.leftover) / lengths.reserved


def decode_state(
    instance: Instance,
    lengths: DecodeLengths,
    replicas: Float[Array, "*c"],
    rate: Float[Array, "*c"],
    *,
    max_batch: Leaf,
    transfer: Float[Array, "*c"],
    arrival_scv: Float[Array, "..."] | float = 1.0,
    dispatch: Dispatch = "shared",
) -> DecodeState:
    """The pool at an arrival rate.

    Args:
      instance: one of its instances.
      lengths: moments of the requests.
      replicas: instances.
      rate: requests arriving at the pool, 1/s.
      max_batch: batch cap of an instance.
      transfer: mean time between getting a slot and the first decode step, s.
      arrival_scv: squared coefficient of variation between arrivals.
      dispatch: how requests are spread over the instances.
    """
    demand = rate * lengths.mean_steps / replicas  # steps per second and instance
    room = slots(instance, lengths, max_batch, rate * transfer / replicas)
    arrival_scv = scv_at_one(dispatch, arrival_scv, replicas)
    replicas = acting_together(dispatch, replicas)
    burst = 0.5 * (1.0 + arrival_scv)

    def spread(batch, slope):
        """Variance of the batch of an instance."""
        tilt = jnp.clip(demand * slope, 1e-6, _FULL)
        variance = burst * batch / ((1.0 - tilt) * replicas)
        # whole requests are dealt out; where an instance rarely holds two, each is by itself
        dealt = 0.25 * -jnp.expm1(-jnp.maximum(batch - 1.0, 0.0))
        return variance + jnp.where(replicas > 1.0, dealt, 0.0)

    batch, slope, per_token, unequal = _settle(
        instance, lengths, demand, 1.0 / replicas, room, spread
    )
    tilt = jnp.clip(demand * slope, 1e-6, _FULL)
    batch_var = spread(batch, slope)
    ends = jnp.stack([jnp.ones_like(room), room])
    step_one, step_full = step_time(instance, lengths, ends)
    step_full = step_full + unequal
    full = demand * step_full / room
    per_demand = ratio(batch, jnp.where(demand > LEAST_RATE, demand, 1.0))
    step = jnp.clip(per_demand, step_one, step_full)
    step_var = slope**2 * batch_var + per_token**2 * lengths.context_var * batch

    by_memory = slot_room(instance, lengths) < max_batch
    fill_var = jnp.where(by_memory, batch * lengths.reserved_var / lengths.reserved**2, 0.0)
    hold_scv = jnp.where(by_memory, lengths.hold_scv, lengths.steps_scv)
    below_full = jnp.clip(full, 0.0, _FULL)
    deviation = jnp.sqrt(batch_var + fill_var + 1e-9)
    distance = (room - 0.5 - batch) / deviation
    density = jnp.exp(-0.5 * distance**2) / (deviation * 2.5066283)
    variability = jnp.maximum(0.5 * (arrival_scv + hold_scv), _SMALLEST_VARIABILITY)
    beyond = density * variability / (1.0 - below_full) / replicas
    waits = beyond / (_normal_cdf(distance) + beyond + 1e-12)
    drain = replicas * room / (lengths.mean_steps * step_full) * (1.0 - below_full) / variability
    return DecodeState(
        batch=batch,
        slots=room,
        full=full,
        step=step,
        step_var=step_var,
        relaxation=lengths.residual / (1.0 - tilt),
        step_full=step_full,
        waits=waits,
        drain=drain,
    )


def _settle(instance, lengths, demand, shift, room, spread):
    """Batch that carries the demand, by Newton on ``n - a tau(n + 1/k)`` in [0, slots].

    Args:
      instance: the instance.
      lengths: moments of the requests.
      demand: steps per second and instance.
      shift: ``1/k``.
      room: slots.
      spread: variance of the batch, from the batch and the growth of a step per request.

    Returns:
      the batch; the growth of the step time per request and per token of context there; and the
      time that the slowest of pp unequal lanes adds to a step.
    """
    excess = lane_excess(instance)

    def step(n):
        time, slope, per_token, unequal = step_growth(instance, lengths, n + shift, excess)
        if instance.curved:
            variance, tangent = spread(n, slope), slope
            time, slope = _over_batches(instance, lengths, n, shift, variance, tangent)
            # a step may also get shorter with a batch that leaves less room for pieces of prompts
            unequal = unequal * jnp.clip(slope / jnp.maximum(tangent, _LEAST_SLOPE), 0.0, 1.0)
        value = n - demand * (time + unequal)
        moved = n - value / jnp.maximum(1.0 - demand * slope, 1e-3)
        return jnp.clip(moved, 0.0, room), slope, per_token, unequal

    # XLA computes each thing that a loop carries by itself: only the last step wants the slopes
    n = lax.fori_loop(0, _NEWTON_STEPS - 1, lambda _, n: step(n)[0], room)
    return step(n)


def _over_batches(instance, lengths, batch, shift, variance, tangent):
    """Mean step time over the batches that requests meet, s, and its mean growth per request.

    A request meets n + 1/k in the mean, itself among them. The others count as one of two numbers
    that have their mean and their variance, and are not negative.
    """
    lane = jnp.maximum((batch + shift) / instance.pp, 1.0)
    others = lane - 1.0
    # where a lane rarely holds a second request, most of the variance is between empty lanes
    shared = others / jnp.maximum(batch / instance.pp, 1e-6)
    variance = jnp.maximum(variance / instance.pp * jnp.minimum(shared, 1.0), 1e-9)
    few = jnp.maximum(others - jnp.sqrt(variance), 0.0)
    gap = jnp.maximum(others - few, 1e-6)
    many = others + variance / gap
    weight = variance / (variance + gap * gap)
    at_few, at_many = (
        _stage_time(instance, lengths, 1.0 + n, (1.0 + n) * lengths.context) for n in (few, many)
    )
    apart = many - few
    slope = jnp.where(apart > 1e-2, (at_many - at_few) / jnp.maximum(apart, 1e-2), tangent)
    return instance.pp * (weight * at_few + (1.0 - weight) * at_many), slope


def lane_excess(instance: Instance) -> Float[Array, "*c"]:
    """Deviations by which the slowest of pp lanes exceeds the mean, times pp."""
    return _largest_of(instance.pp) * instance.pp


def step_growth(
    instance: Instance,
    lengths: DecodeLengths,
    batch: Float[Array, "*c"],
    excess: Float[Array, "*c"],
) -> tuple[Float[Array, "*c"], Float[Array, "*c"], Float[Array, "*c"], Float[Array, "*c"]]:
    """Time of a decode step around a batch.

    Args:
      instance: the instance.
      lengths: moments of the requests.
      batch: requests that it holds.
      excess: its `lane_excess`.

    Returns:
      the time with equal lanes, s; its growth per request and per token of context; and what the
      slowest of pp unequal lanes adds, s.
    """
    one = jnp.ones_like(batch)
    lane = jnp.maximum(batch / instance.pp, 1.0)

    def stage(batch, context):
        return _stage_time(instance, lengths, batch, context)

    where = (lane, lane * lengths.context)
    time, growth = jax.linearize(stage, *where)
    per_request, per_token = growth(one, one * lengths.context), growth(0.0 * one, one)
    spread = per_request**2 + per_token**2 * lane * lengths.context_var
    spread = jnp.maximum(spread, _LEAST_SPREAD)
    crowded = -jnp.expm1(-jnp.maximum(batch - 1.0, 0.0) / instance.pp)
    return time * instance.pp, per_request, per_token, crowded * excess * jnp.sqrt(spread)


def _largest_of(lanes):
    """Mean of the largest of `lanes` standard normal variables."""
    return jnp.interp(lanes, jnp.array(_LANE_COUNTS), jnp.array(_LARGEST_OF_NORMALS))


def tpot_within(
    state: DecodeState,
    lengths: DecodeLengths,
    limit: Float[Array, "..."] | float,
    *,
    handover: Float[Array, "*c"],
    handover_var: Float[Array, "*c"],
    first_token: FirstToken,
) -> Float[Array, "m *c"]:
    """Share of each output bin whose TPOT is at most `limit`; 1 for a single output token.

    Zero where the slots cannot carry the load.

    Args:
      state: the pool.
      lengths: the requests.
      limit: on the mean time per output token after the first, s.
      handover: mean time between the end of prefill and the first decode step, slot wait aside, s;
        part of TPOT only when the first token leaves with prefill.
      handover_var: its variance, s**2.
      first_token: where the first token leaves.
    """
    in_tpot = 1.0 if first_token == "prefill" else 0.0
    before = in_tpot * (handover + state.joining())
    start = in_tpot * (state.step**2 / 12.0 + handover_var)

    def of_bin(g):
        g_ok = jnp.maximum(g, 1.0)
        mean = state.step + before / g_ok
        average = averaging(g_ok / state.relaxation)
        variance = state.step_var * average + start / g_ok**2 + (1e-9 * state.step) ** 2
        met = _normal_cdf((limit - mean) / jnp.sqrt(variance))
        slack = g * (limit - state.step_full) - in_tpot * (handover + 0.5 * state.step_full)
        met_after_wait = 1.0 - state.late(slack)
        waits = state.waits * in_tpot
        share = (1.0 - waits) * met + waits * met_after_wait
        share = jnp.where(g < 0.5, 1.0, share)
        return jnp.where(state.full < 1.0, share, 0.0)

    # every bin has a state or a limit of its own
    if max(jnp.ndim(state.step), jnp.ndim(limit)) > jnp.ndim(state.step_full):
        return of_bin(jnp.reshape(lengths.gaps, (-1, *([1] * jnp.ndim(state.step_full)))))
    # a loop, so that XLA computes the state once and not again for every bin
    return lax.map(of_bin, lengths.gaps)


def _normal_cdf(x):
    """One error function where the library's own, exact for any sign either way, takes two."""
    return 0.5 * lax.erfc(-0.7071067811865476 * x)


def averaging(x):
    """Variance of an average over x relaxation times against that of one instant.

    For an exponential autocorrelation: ``2 (x - 1 + exp(-x)) / x**2``.
    """
    at = jnp.maximum(x, 1e-2)
    return jnp.where(x < 1e-2, 1.0 - x / 3.0, 2.0 * (at - 1.0 + jnp.exp(-at)) / at**2)
