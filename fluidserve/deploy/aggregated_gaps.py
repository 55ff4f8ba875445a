r"""Gaps between tokens on instances that also do prefill; `fluidserve.deploy.disaggregated`.

A gap is a decode step, with what prompts do to it. The share of the gaps that hold prompts, and how
much of them, is where the distribution of single gaps differs from that of TPOT, which averages it.

**Prompts first.** Between two decode steps all prompts are computed that came during the first one,
then those that came meanwhile, until none waits: a busy period that a Poisson number of jobs
begins. It holds k of them with the generalised Poisson probability (Consul and Jain 1973)

.. math:: \frac{a (a + k\rho)^{k-1} e^{-a-k\rho}}{k!}, \qquad a = \lambda\tau .

One prompt alone may be of any length bin; the sum of several is taken as lognormal, with the time
per prompt that is left of the busy period's mean. The first gap of a request begins with its own
prefill instead of a step.

Counted in steps, arrivals come in clusters, all that arrived during one busy period at once, whose
size has a mean square over its mean of :math:`(1 + \rho^2 c_s^2)/(1-\rho)^2`. The batch varies the
more for it, as in a queue with infinitely many servers and arrivals in clusters.

**Prompts in pieces.** An iteration is pure, full, or holds a rest of prompts. Behind one that is
not full, whatever came during it begins afresh: nothing with probability
:math:`e^{-\lambda t}`. So of the iterations that are not full, those without prompts are

.. math:: \frac{e^{-\lambda t_r}}{1 - e^{-\lambda\tau} + e^{-\lambda t_r}}

with :math:`t_r` the time of one with a rest. How many are full follows from the prompt tokens that
must be computed. A rest is what a prompt, or several together, leave beyond full iterations.

Arrays have their bins on the first axis and candidates on the rest.

Ignores: that batches are large when prompts are many; lanes of a pipeline that wait for each
other, beyond `fluidserve.stages.interrupted.with_bubbles`.
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax.scipy.special import ndtr
from jaxtyping import Array, Float

from fluidserve._typing import Leaf
from fluidserve.deploy.aggregated import AggregatedPlan, AggregatedState
from fluidserve.deploy.disaggregated import NO_LIMIT, first_gaps, gaps_within
from fluidserve.stages.chunks import mean_pieces
from fluidserve.stages.decode import lane_excess, step_growth
from fluidserve.stages.interrupted import LEAST_LEFT
from fluidserve.stages.split import acting_together

_CELLS = 12
_MANY = (2, 3, 4)
_SEVERAL = (2.0, 3.0, 4.0, 6.0)
_NODES = (0.1127017, 0.5, 0.8872983)
_WEIGHTS = (5.0 / 18.0, 8.0 / 18.0, 5.0 / 18.0)


@gaps_within.register(AggregatedPlan)
def _gaps_within(
    plan: AggregatedPlan, state: AggregatedState, limit: Float[Array, "..."] | float
) -> Float[Array, "*c"]:
    limit = jnp.minimum(limit, NO_LIMIT)
    carried = (state.prefill.load < 1.0) & (state.decode.full < 1.0)
    within = _prompts_first if plan.system.token_budget is None else _in_pieces
    share = within(plan, state, _Steps(plan, state), limit)
    return jnp.where(carried, share, 0.0)


class _Steps:
    """Decode steps without prompts as the tokens see them, and the prompts that come.

    Counted in steps, arrivals come in clusters: all that arrived while prompts held decode up. The
    batch varies the more for it, and a token sees a batch as often as it has requests.
    """

    def __init__(self, plan: AggregatedPlan, state: AggregatedState):
        decode, lengths, instance = state.decode, plan.lengths, plan.system.instance
        self.left = jnp.maximum(1.0 - state.taken, LEAST_LEFT)
        demand = decode.batch / decode.step
        self.rate = demand / lengths.mean_steps
        together = acting_together(plan.system.dispatch, plan.system.replicas)
        excess = lane_excess(instance)
        slope = step_growth(instance, lengths, decode.batch, excess)[1]
        tilt = jnp.clip(demand * slope / self.left, 0.0, 0.9)
        cluster = (1.0 + state.taken**2 * plan.prefill.scv) / self.left**2
        uneven = (1.0 + (cluster - 1.0) * _together(plan)) / (1.0 - tilt) / together
        self.seen = decode.batch + uneven
        self.seen_var = decode.batch * uneven + uneven * jnp.maximum(uneven - 1.0, 0.0)
        self.alone, slope, per_token, _ = step_growth(instance, lengths, self.seen, excess)
        of_context = per_token**2 * lengths.context_var * self.seen
        self.var = slope**2 * self.seen_var + of_context + (1e-4 * self.alone) ** 2

    def within(self, slack: Array, mean: Array) -> Array:
        """Share of steps of that mean, s, that end within `slack`, s."""
        return ndtr((slack - mean) / jnp.sqrt(self.var))


def _together(plan: AggregatedPlan) -> Array:
    """Share of their steps that two requests who begin together are both in decode."""
    steps, share = plan.lengths.steps, plan.bins.out_share
    both = jnp.minimum(steps[:, None], steps[None, :])
    return share @ both @ share / plan.lengths.mean_steps


def _prompts_first(plan: AggregatedPlan, state: AggregatedState, steps: _Steps, limit) -> Array:
    pp, rate, tau = plan.prefill.pp, steps.rate, steps.alone

    def lead(x):
        return jnp.reshape(x, (*x.shape, *([1] * jnp.ndim(tau))))

    share = lead(plan.bins.in_share)
    low, high = plan.prefill.low * pp, plan.prefill.high * pp
    first, own = first_gaps(plan.bins), plan.prefill.mean * pp
    begins = ((1.0 - first, rate * tau), (first, rate * own))
    load = jnp.minimum(state.taken, 1.0 - LEAST_LEFT)

    def chance(prompts: int) -> Array:
        often, first_one = (w * _in_busy_period(prompts, a, load) for w, a in begins)
        return often + first_one

    met = chance(0) * steps.within(limit, tau)
    one = sum(w * a * jnp.exp(-a) for w, a in begins)
    start = sum(w * a for w, a in begins)
    left, prompts = 1.0 - chance(0), start / steps.left
    time = prompts * jnp.where(rate > 0.0, state.taken / jnp.where(rate > 0.0, rate, 1.0), own)
    node, weight = (lead(jnp.array(x))[:, None] for x in (_NODES, _WEIGHTS))
    alone = low + node * (high - low)
    part = weight * share * one * jnp.exp(-rate * alone)
    met = met + jnp.sum(part * steps.within(limit - alone, tau), axis=(0, 1))
    single = jnp.sum(part, axis=(0, 1))
    left, prompts = left - single, prompts - single
    time = time - jnp.sum(part * alone, axis=(0, 1))
    each = jnp.clip(time / jnp.maximum(prompts, 1e-9), 0.5 * own, 2.0 * own)
    var = plan.prefill.scv * own**2

    def several(many: Leaf) -> Array:
        total = tau + many * each
        width = jnp.sqrt(jnp.log1p((many * var + steps.var) / total**2))
        return ndtr(jnp.log(jnp.maximum(limit, 1e-9) / total) / width + 0.5 * width)

    for many in _MANY:
        part = jnp.clip(chance(many), 0.0, left)
        met = met + part * several(float(many))
        left, prompts = left - part, prompts - part * many
    rest = jnp.maximum(prompts / jnp.maximum(left, 1e-9), _MANY[-1] + 1.0)
    return met + left * several(rest)


def _in_busy_period(jobs: int, start: Array, load: Array) -> Array:
    """Chance of so many jobs in a busy period that a Poisson number of them begins.

    The generalised Poisson distribution (Consul and Jain 1973): exact for equal jobs.
    """
    if jobs == 0:
        return jnp.exp(-start)
    mean = start + jobs * load
    return start * mean ** (jobs - 1) * jnp.exp(-mean) / math.factorial(jobs)


def _in_pieces(plan: AggregatedPlan, state: AggregatedState, steps: _Steps, limit) -> Array:
    system, instance, bins = plan.system, plan.system.instance, plan.bins
    pp, rate, tau = instance.pp, steps.rate / instance.pp, steps.alone
    assert system.token_budget is not None
    pieces = mean_pieces(instance, bins, system.token_budget, system.prefix_hit)
    lane = jnp.maximum(steps.seen / pp, 1.0)
    more = jnp.sqrt(steps.seen_var) / pp
    room = pieces.room(lane)

    def lead(x):
        return jnp.reshape(x, (*x.shape, *([1] * jnp.ndim(tau))))

    def mixed(new: Array, before: Array, lane: Array) -> Array:
        """Time of an iteration with a piece of `new` tokens behind `before` others, s."""
        context, inside = lane * plan.lengths.context, 0.0
        if plan.lengths.windowed is not None:
            inside = plan.lengths.windowed.level * lane + plan.lengths.windowed.slope * context
        batch = instance.decode_work(lane, context, inside)
        return pp * instance.times.stage_time(batch + instance.chunk_work(before, new))

    def within(new: Callable[[Array], Array], before: Array) -> Array:
        """Share of such iterations within the limit; their piece depends on the batch."""
        time = mixed(new(lane), before, lane)
        other = mixed(new(lane + more), before, lane + more)
        var = (other - time) ** 2 + (1e-3 * time) ** 2
        return ndtr((limit - time) / jnp.sqrt(var))

    share = lead(bins.in_share)
    work = [instance.prefill_work(lead(x), system.prefix_hit) for x in (bins.in_low, bins.in_high)]
    cached = 0.5 * (work[0].kv_read + work[1].kv_read)
    low, high = (w.new + 0.0 * tau for w in work)
    high = jnp.maximum(high, low + 1.0)
    whole = _whole_pieces(low, high, room)
    before = jnp.sum(share * (whole * room + cached), axis=0)

    # tokens of an iteration that its prompts do not fill, of one prompt alone or of several
    part = lead((jnp.arange(_CELLS) + 0.5) / _CELLS) * room
    edge = lead(jnp.arange(1, _CELLS) / _CELLS) * room
    of_one = jnp.sum(share * _rest_within(low, high, room, edge[:, None]), axis=1)
    of_several = _sums_within(plan, room, edge)
    times = mixed(part, before, lane)
    full = mixed(room, 0.5 * before, lane)
    run = jnp.sum(share * whole, axis=0) * full + jnp.mean(times, axis=0)
    alone = jnp.exp(-rate * run) * rate * tau / jnp.maximum(-jnp.expm1(-rate * tau), 1e-9)
    below = of_several + jnp.clip(alone, 0.0, 1.0) * (of_one - of_several)
    nothing = jnp.zeros_like(below[:1])
    weight = jnp.diff(jnp.concatenate([nothing, below, nothing + 1.0]), axis=0)
    rest_time = jnp.sum(weight * times, axis=0)
    rest = jnp.sum(weight * part, axis=0)

    again = jnp.exp(-rate * rest_time)
    pure = again / (again - jnp.expm1(-rate * tau))
    # full iterations compute the tokens that the others do not
    tokens = rate * pieces.tokens
    left = tokens * (pure * tau + (1.0 - pure) * rest_time) - (1.0 - pure) * rest
    many = jnp.maximum(left, 0.0) / jnp.maximum(room - tokens * full, 0.02 * room)

    partly = jnp.sum(weight * within(lambda _: part, before), axis=0)
    met = pure * steps.within(limit, tau) + (1.0 - pure) * partly
    node = lead(jnp.array(_NODES))[:, None]
    behind = cached + node * jnp.maximum(whole - 1.0, 0.0) * room
    deep = jnp.tensordot(jnp.array(_WEIGHTS), within(pieces.room, behind), axes=1)
    pieces_full = jnp.sum(share * whole, axis=0)
    filled = jnp.sum(share * whole * deep, axis=0) / jnp.maximum(pieces_full, 1e-6)
    filled = jnp.where(pieces_full > 1e-3, filled, within(pieces.room, 0.5 * before))
    return (met + many * filled) / (1.0 + many)


def _sums_within(
    plan: AggregatedPlan, room: Float[Array, "*c"], edge: Float[Array, "e *c"]
) -> Float[Array, "e *c"]:
    """Share of sums of several prompts whose rest is at most each of the edges."""
    bins = plan.bins
    new = plan.system.instance.prefill_work(bins.in_mean, plan.system.prefix_hit).new
    mean = jnp.sum(bins.in_share * new)
    square = jnp.sum(bins.in_share * new**2 * (1.0 + bins.in_var / bins.in_mean**2))
    prompts = jnp.reshape(jnp.array(_SEVERAL), (-1, *([1] * edge.ndim)))
    half = jnp.sqrt(3.0 * prompts * jnp.maximum(square - mean**2, 0.0))
    low = jnp.maximum(prompts * mean - half, 1.0)
    high = jnp.maximum(prompts * mean + half, low + 1.0)
    return jnp.mean(_rest_within(low, high, room, edge), axis=0)


def _whole_pieces(low: Array, high: Array, room: Array) -> Array:
    """Mean number of full iterations of prompts of lengths uniform in between."""

    def until(x: Array) -> Array:
        count = jnp.floor(x / room)
        return 0.5 * room * count * (count - 1.0) + count * (x - count * room)

    return (until(high) - until(low)) / (high - low)


def _rest_within(low: Array, high: Array, room: Array, edge: Array) -> Array:
    """Share of lengths uniform in between whose rest beyond full iterations is at most `edge`."""

    def until(x: Array) -> Array:
        count = jnp.floor(x / room)
        return count * edge + jnp.minimum(x - count * room, edge)

    return (until(high) - until(low)) / (high - low)
