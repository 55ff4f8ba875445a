r"""The first N requests into an empty deployment, instead of steady state.

Each request finds the stages as they are when it comes: the queues of prefill and link after as
many arrivals, the decode pool filled as far, and emptying once the last request has come. Shares
are averaged over the requests by Gauss-Legendre nodes in s, with the share :math:`3s^2 - 2s^3` of
the requests before the node, so that start and end are seen more closely.

Above capacity nothing is infinite: queues grow with the requests that came. Behind an overloaded
stage the next one gets what the former lets through.

Ignores: that a slot is waited for by whole requests of unlike size; stalls of prefill by full
memory, but as a chance; the spread of arrivals behind an overloaded prefill pool.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf
from fluidserve.deploy.disaggregated import (
    NO_LIMIT,
    Metrics,
    Plan,
    State,
    at_rate,
    decoded_share,
    first_step,
    handover_var,
    largest_rate,
)
from fluidserve.deploy.latency import QUANTILES, Latencies, levels_of, quantiles, several_tokens
from fluidserve.deploy.promise import (
    attainments,
    excess_of,
    has_shares,
    own_shares,
    reported,
)
from fluidserve.queueing.mgn import MAX_SERVERS
from fluidserve.queueing.transient import Walk, step_variance
from fluidserve.specs.slo import Slo
from fluidserve.stages.decode import DecodeState, slot_room, step_time, tpot_within
from fluidserve.stages.filling import Filling, along, filling
from fluidserve.stages.kv_link import LinkState
from fluidserve.stages.prefill import Delay, PrefillState, early_prefill
from fluidserve.stages.windowed import prompt_moments

NODES = 6
_LARGEST_MULTIPLE = 20.0
_MARGIN = 3.0
_FULL = 1.0 - 1e-3
_INTEGRAL_REACH = 2.5
_REACH = 12.0
_AMPLIFIED = 8.0


@pytree
class SlotWait:
    """The wait of one of the first requests for a decode slot, s.

    Attributes:
      waits: chance of a wait in steady state.
      drain: rate of that wait, 1/s.
      unit: time in which a full pool lets one request go, s.
      walk: the walk behind the wait, in units of `unit`.
      lag: overshoot of a step of the walk.
      distance: how far a pool that is asked for too much still is from its slots, in requests.
    """

    waits: Leaf
    drain: Leaf
    unit: Leaf
    walk: Walk
    lag: Leaf
    distance: Leaf

    def tail(self, wait: Float[Array, "..."]) -> Float[Array, "..."]:
        """P(wait for a slot > `wait`); 1 for negative ones."""
        at = jnp.maximum(wait, 0.0)
        z = at / self.unit + self.lag
        below = self.walk.down > 0.0
        steady = jnp.where(below, self.waits * jnp.exp(-self.drain * at), 1.0)
        share = self.walk.share(z + jnp.where(below, 0.0, self.distance))
        return jnp.where(wait < 0.0, 1.0, steady * share)


@pytree
class Early:
    """The stages as single requests find them; a node on the first axis of every leaf.

    Attributes:
      prefill: the prefill pool.
      link: the link, its load held below 1.
      decode: the decode pool, its step time the one at admission.
      slot: the wait for a slot.
      lived: step time averaged over the life of a request, by output bin, s, (nodes, m, *c).
      variance: of that step time, s**2, (nodes, m, *c).
      handover: time from getting a slot to being ready for decode, s.
      overflow: chance that prompts that wait for a slot fill the prefill memory.
    """

    prefill: PrefillState
    link: LinkState
    decode: DecodeState
    slot: SlotWait
    lived: Leaf
    variance: Leaf
    handover: Leaf
    overflow: Leaf


@pytree
class EarlyState:
    """A deployment over its first requests.

    Attributes:
      steady: its stages at the rate, and at what comes through to link and decode.
      nodes: the stages as single requests find them.
    """

    steady: State
    nodes: Early


def node_shares() -> tuple[np.ndarray, np.ndarray]:
    """Shares of the requests before each node, and the weights of the nodes."""
    x, w = np.polynomial.legendre.leggauss(NODES)
    s = 0.5 * (x + 1.0)
    return s * s * (3.0 - 2.0 * s), 0.5 * w * 6.0 * s * (1.0 - s)


def early_state(
    plan: Plan, rate: Float[Array, "*c"], *, max_replicas: int = MAX_SERVERS
) -> EarlyState:
    """The stages over the first ``plan.horizon`` requests at an arrival rate, 1/s."""
    before, link_limit, _ = largest_rate(plan)
    through = jnp.minimum(rate, jnp.minimum(before, link_limit))
    asked = at_rate(plan, rate, max_replicas=max_replicas)
    steady = at_rate(plan, through, max_replicas=max_replicas)
    steady = dataclasses.replace(steady, prefill=asked.prefill, link=_asked_link(asked, steady))
    fill = filling(
        plan.system.decode,
        plan.lengths,
        plan.system.n_decode,
        through,
        _requests(plan) / through,
        share=plan.bins.out_share,
        state=steady.decode,
    )
    shares, _ = node_shares()
    nodes = jax.vmap(lambda share: _node(plan, steady, fill, rate, through, share))(
        jnp.asarray(shares, rate.dtype)
    )
    return EarlyState(steady=steady, nodes=nodes)


def _requests(plan: Plan) -> Leaf:
    """How many requests are judged."""
    assert plan.horizon is not None
    return plan.horizon


def _asked_link(asked: State, steady: State) -> LinkState:
    """The load that is asked of the link, with the wait at what it can carry."""
    return dataclasses.replace(steady.link, load=asked.link.load)


def _node(
    plan: Plan,
    steady: State,
    fill: Filling,
    rate: Float[Array, "*c"],
    through: Float[Array, "*c"],
    share: Float[Array, ""],
) -> Early:
    """The stages as the request after a share of all finds them."""
    system, lengths, decode = plan.system, plan.lengths, steady.decode
    customer = share * (_requests(plan) - 1.0)
    prefill = early_prefill(
        steady.prefill,
        plan.prefill,
        system.n_prefill,
        customer,
        arrival_scv=plan.arrival_scv,
        dispatch=system.dispatch,
    )
    link = _early_link(plan, steady.link, customer)
    handover = link.wait + link.transfer + system.handover_overhead

    per_instance = customer / system.n_decode
    admitted = along(fill.admitted, fill.time, per_instance + 0.0 * through)
    batch = along(fill.time, fill.batch, admitted)
    made = along(fill.time, fill.made, admitted)
    steps = jnp.reshape(lengths.steps, (-1, *([1] * jnp.ndim(made))))
    life = along(fill.made, fill.time, made + steps) - admitted
    unequal = decode.step_full - step_time(system.decode, lengths, decode.slots)
    shift = 1.0 / system.n_decode
    now = step_time(system.decode, lengths, batch + shift) + unequal
    alone = step_time(system.decode, lengths, jnp.ones_like(batch))
    # a short life late in a long run cancels in float32
    lived = jnp.maximum(life / jnp.maximum(steps, 1.0), alone)
    lived = jnp.where(steps >= 1.0, lived, now)
    grown = (lived - alone) / jnp.maximum(decode.step - alone, 1e-3 * alone)

    # a batch that is held at its slots, or still fills, varies by its arrivals alone
    per_request = (decode.step_full - alone) / jnp.maximum(decode.slots - 1.0, 1.0)
    arrivals = 0.5 * (1.0 + plan.arrival_scv) * per_request**2 * batch / system.n_decode
    most = jnp.where(decode.full < 1.0, _AMPLIFIED, 1.0) * arrivals

    slot = _slot_wait(plan, decode, customer, through, admitted - customer / through, batch)
    prompt, _ = prompt_moments(plan.bins, system.prefill.kv)
    computing = through * (plan.prefill.mean * system.prefill.pp + handover)
    room = system.n_prefill * system.prefill.kv_capacity / prompt - computing
    overflow = slot.tail(jnp.maximum(room, 0.0) / rate)
    return Early(
        prefill=prefill,
        link=link,
        decode=dataclasses.replace(decode, step=now, batch=batch, full=0.0 * now, waits=0.0 * now),
        slot=slot,
        lived=lived,
        variance=jnp.minimum(decode.step_var * jnp.clip(grown, 0.0, 1.0), most),
        handover=handover,
        overflow=overflow,
    )


def _early_link(plan: Plan, link: LinkState, customer: Float[Array, ""]) -> LinkState:
    """The link with the mean wait of one of the first requests."""
    prompt, prompt_square = prompt_moments(plan.bins, plan.system.kv)
    load = jnp.maximum(link.load, 1e-4)
    scv = jnp.maximum(prompt_square / prompt**2 - 1.0, 0.0)
    var = step_variance(scv, plan.arrival_scv, load)
    walk = Walk(steps=jnp.maximum(customer, 1.0), down=1.0 / load - 1.0, var=var)
    steady = 0.5 * var / jnp.maximum(walk.down, 1e-4)
    below = link.wait * jnp.clip(walk.mean() / steady, 0.0, 1.0)
    wait = jnp.where(link.load < 1.0, below, walk.mean() * link.transfer)
    return LinkState(load=jnp.minimum(link.load, _FULL), wait=wait, transfer=link.transfer)


def _slot_wait(
    plan: Plan,
    decode: DecodeState,
    customer: Float[Array, ""],
    through: Float[Array, "*c"],
    queued: Float[Array, "*c"],
    batch: Float[Array, "*c"],
) -> SlotWait:
    """Wait for a slot: the stationary one below capacity, a queue that grows above.

    Args:
      plan: the deployment.
      decode: the pool in steady state.
      customer: requests that came before.
      through: requests arriving at the pool, 1/s.
      queued: time that the fluid waits for a slot, s.
      batch: requests in decode per instance.
    """
    replicas, lengths = plan.system.n_decode, plan.lengths
    unit = lengths.mean_steps * decode.step_full / (replicas * decode.slots)
    load = jnp.maximum(decode.full, 1e-4)
    by_memory = slot_room(plan.system.decode, lengths) < plan.system.max_batch
    hold = jnp.where(by_memory, lengths.hold_scv, lengths.steps_scv)
    var = step_variance(hold, plan.arrival_scv, load)
    down = 1.0 / load - 1.0
    filled = through * decode.relaxation * decode.step
    # nobody leaves, and so nothing varies, before the slots have been taken once
    taken = jnp.where(down > 0.0, filled, replicas * decode.slots)
    steps = jnp.maximum(customer - taken, 0.3)
    behind = queued / unit - jnp.maximum(decode.slots - batch, 0.0) * replicas
    return SlotWait(
        waits=decode.waits,
        drain=decode.drain,
        unit=unit,
        walk=Walk(steps=steps, down=down, var=var),
        lag=0.583 * jnp.sqrt(var),
        distance=jnp.maximum(-down * steps - behind, 0.0),
    )


def _ttft_within(plan: Plan, at: Early, limit: Float[Array, "..."]) -> Float[Array, "q *c"]:
    """Share of each prompt bin whose TTFT is at most `limit`, at one node, without any stall."""
    if plan.system.first_token == "prefill":
        return at.prefill.within(limit)
    system, prefill = plan.system, at.prefill
    per_token = system.kv_bytes_per_token / system.link_bandwidth
    bins = (plan.bins.in_low, plan.bins.in_high)
    low, high = (jnp.reshape(e, (-1, *([1] * at.handover.ndim))) * per_token for e in bins)
    waits, drain = at.link.exponential()
    later = system.handover_overhead + first_step(at.decode)
    in_time = prefill.within(limit - later, Delay(low=low, high=high, waits=waits, drain=drain))
    typical = plan.prefill.mean * plan.prefill.pp + at.handover + first_step(at.decode)
    has_slot = 1.0 - at.slot.tail(jnp.maximum(limit - typical, 0.0))
    return in_time * has_slot


def _tpot_within(plan: Plan, at: Early, limit: Float[Array, "..."]) -> Float[Array, "m *c"]:
    """Share of each output bin whose TPOT is at most `limit`, at one node."""
    lived = dataclasses.replace(at.decode, step=at.lived, step_var=at.variance)
    met = tpot_within(
        lived,
        plan.lengths,
        limit,
        handover=at.handover,
        handover_var=handover_var(plan, at.link),
        first_token=plan.system.first_token,
    )
    if plan.system.first_token == "decode":
        return met
    g = jnp.reshape(plan.lengths.gaps, (-1, *([1] * jnp.ndim(at.handover))))
    slack = g * (limit - at.lived) - at.handover - 0.5 * at.lived
    waits = at.slot.tail(jnp.zeros_like(at.handover))
    in_time = jnp.maximum(waits - at.slot.tail(slack), 0.0)
    return jnp.where(g < 0.5, 1.0, (1.0 - waits) * met + in_time)


def _averaged(values: Float[Array, "n ..."]) -> Float[Array, "..."]:
    """Mean over the requests, from the nodes."""
    _, weights = node_shares()
    return jnp.tensordot(jnp.asarray(weights, values.dtype), values, axes=1)


def early_metrics(plan: Plan, slo: Slo, rate: Float[Array, "*c"], state: EarlyState) -> Metrics:
    """Attainment and utilisation over the first requests; loads are what is asked for."""
    nodes, system = state.nodes, plan.system

    def shares(at):
        ttft = _ttft_within(plan, at, jnp.minimum(slo.ttft, NO_LIMIT)) * (1.0 - at.overflow)
        tpot = _tpot_within(plan, at, jnp.minimum(slo.tpot, NO_LIMIT))
        by_ttft = jnp.tensordot(plan.bins.in_share, ttft, axes=1)
        by_tpot = jnp.tensordot(plan.bins.out_share, tpot, axes=1)
        if has_shares(slo):
            ttft_counts, tpot_counts, _ = reported(slo)
            ttft = jnp.where(ttft_counts, ttft, 1.0)
            tpot = jnp.where(tpot_counts, tpot, 1.0)
        joint = jnp.sum(jnp.tensordot(plan.bins.joint, tpot, axes=1) * ttft, axis=0)
        return joint, by_ttft, by_tpot

    joint, ttft, tpot = (_averaged(x) for x in jax.vmap(shares)(nodes))
    batch = _averaged(nodes.decode.batch)
    prompt, _ = prompt_moments(plan.bins, system.prefill.kv)
    held = plan.prefill.mean * system.prefill.pp + _averaged(nodes.handover)
    room = jnp.maximum(system.n_prefill * system.prefill.kv_capacity, 1.0)
    waits = jax.vmap(lambda at: at.slot.tail(jnp.zeros_like(at.handover)))(nodes)
    return Metrics(
        attainment=joint,
        excess=excess_of(slo, joint, attainments(plan.bins, ttft, tpot, None)),
        ttft_attainment=ttft,
        tpot_attainment=tpot,
        prefill_load=state.steady.prefill.load,
        link_load=state.steady.link.load,
        decode_load=state.steady.decode.full,
        batch=batch,
        kv_use=batch * plan.lengths.reserved / system.decode.kv_capacity,
        slot_waits=_averaged(waits),
        prefill_memory=jnp.minimum(rate * prompt * held / room, 1.0),
        overflow=_averaged(nodes.overflow),
    )


def early_latencies(
    plan: Plan, state: EarlyState, steps: Leaf, slo: Slo | None = None
) -> Latencies:
    """Means and quantiles over the first requests, without stalls by full prefill memory.

    Args:
      plan: the deployment.
      state: over its first requests.
      steps: bisections of each quantile and cells of each mean; with 0 both mean nothing.
      slo: the promise, which may ask for other quantiles.
    """
    bins = plan.bins
    several = several_tokens(bins)

    def within(times):
        def at_node(at):
            ttft = jnp.tensordot(bins.in_share, _ttft_within(plan, at, times[0]), axes=1)
            tpot = jnp.tensordot(several, _tpot_within(plan, at, times[1]), axes=1)
            return jnp.stack([ttft, tpot])

        return _averaged(jax.vmap(at_node)(state.nodes))

    like = jnp.stack([state.steady.handover] * 2)
    levels, *_ = levels_of(Slo() if slo is None else slo)
    found = quantiles(within, like, levels, steps)
    longest = found[len(QUANTILES) - 1]
    reach = _INTEGRAL_REACH * jnp.where(jnp.isfinite(longest), longest, 0.0)
    mean = _integral(lambda times: 1.0 - within(times), reach, steps)
    mean = jnp.where(jnp.isfinite(longest), mean, jnp.inf)
    ttft, tpot = jnp.swapaxes(found, 0, 1)
    return Latencies(
        ttft_mean=mean[0],
        ttft=ttft,
        tpot_mean=mean[1],
        tpot=tpot,
        phases=_phases(plan, state, steps),
    )


def _phases(plan: Plan, state: EarlyState, steps: Leaf) -> Float[Array, "p *c"]:
    """Mean time of a request in each phase; what runs ahead in a pipeline is left out."""
    nodes, prefill = state.nodes, state.steady.prefill
    slot, wait = nodes.slot, nodes.prefill.wait

    def waits(times):
        return jax.vmap(lambda at, y: at.prefill.wait.tail(y / at.prefill.unit))(nodes, times)

    def slots(times):
        return jax.vmap(lambda at, x: at.slot.tail(x))(nodes, times)

    ahead = _REACH / prefill.wait.decay
    queue = _integral(waits, prefill.unit * _reach(wait.walk, ahead), steps)
    before = _REACH / jnp.maximum(slot.drain * slot.unit, 1e-9)
    for_slot = _integral(slots, slot.unit * _reach(slot.walk, before), steps)
    bins = plan.bins
    several = bins.out_share * plan.lengths.steps / plan.lengths.mean_steps
    lived = jnp.tensordot(several, _averaged(nodes.lived), axes=1)
    share = decoded_share(plan)
    times = (
        _averaged(queue),
        plan.prefill.mean * plan.prefill.pp,
        share * _averaged(nodes.handover + for_slot),
        share * _averaged(jax.vmap(first_step)(nodes.decode)),
        (plan.lengths.mean_steps - share) * lived,
    )
    return jnp.stack(jnp.broadcast_arrays(*times))


def _reach(walk: Walk, steady: Float[Array, "..."]) -> Float[Array, "..."]:
    """A time that a wait hardly exceeds, in units of the walk."""
    early = jnp.maximum(walk.mean(), 0.0) + 4.0 * jnp.sqrt(walk.var * walk.steps)
    return jnp.where(walk.down > 0.0, jnp.minimum(early, steady), early)


def _integral(tail, reach: Float[Array, "..."], steps: Leaf) -> Float[Array, "..."]:
    """Integral of a tail from 0 to `reach`, in cells that widen; 0 without steps."""

    def add(i, total):
        cells = jnp.maximum(steps, 1)
        begin, end = (i / cells) ** 2 * reach, ((i + 1) / cells) ** 2 * reach
        return total + (end - begin) * tail(0.5 * (begin + end))

    return lax.fori_loop(0, steps, add, jnp.zeros_like(reach))


def early_limits(plan: Plan, slo: Slo) -> tuple[Float[Array, "*c"], ...]:
    """Rates that no goodput over the first requests exceeds, by stage, 1/s.

    The last of N requests that overload a stage by a factor f waits N (1 - 1/f) service times of
    the pool. The rate is bounded where that is three times the TTFT limit, and at twenty times the
    capacity where so few requests cannot wait as long. Decode counts only requests beyond its slots
    and allows them the TPOT limit over a whole answer besides.
    """
    prefill, link, decode = largest_rate(plan)
    slots = plan.system.n_decode * plan.system.max_batch
    kv = plan.system.n_decode * plan.system.decode.kv_capacity / plan.lengths.reserved
    first, between = jnp.minimum(slo.ttft, NO_LIMIT), jnp.minimum(slo.tpot, NO_LIMIT)
    answer = first + between * jnp.max(plan.lengths.gaps)
    target = slo.attainment
    for share in own_shares(slo) if has_shares(slo) else ():
        target = jnp.minimum(target, jnp.where(share > 0.0, share, 1.0))

    def bound(capacity, requests, limit):
        wait = _MARGIN * limit * capacity / jnp.maximum(target * requests, 1.0)
        return capacity / jnp.maximum(1.0 - wait, 1.0 / _LARGEST_MULTIPLE)

    beyond = jnp.maximum(_requests(plan) - jnp.minimum(slots, kv), 1.0)
    return (
        bound(prefill, _requests(plan), first),
        bound(link, _requests(plan), answer),
        bound(decode, beyond, answer),
    )
