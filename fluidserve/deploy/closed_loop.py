r"""A disaggregated deployment with a fixed number of users: a closed loop.

Each user sends the next request when the last token of the one before has left. The stages are
those of the open loop (`fluidserve.deploy.disaggregated`); what changes is where the requests are.
The first prefill stage is the first station of a closed network, everything behind it the second:
the other prefill stages, the link, the wait for a slot, and decode. With batch b the second holds j
requests and completes X of them per second,

.. math:: X = \frac{k\,b}{E[o]\,\tau(b)}, \qquad j = X\,(\ell + h(X)) + k\,b,

with the pass through the other stages :math:`\ell` and the hand-over h. Where slots are full, X
grows no further and requests wait; once their KV fills the prefill memory, they wait before prefill
instead.

The law of the number at prefill (`fluidserve.queueing.closed`) gives throughput, batch and waits,
and these make the same `State` that an arrival rate would.

Ignores: that users who begin together stay in step when all requests are equal; that several
requests end with the same decode step; think time.
"""

import dataclasses

import jax.numpy as jnp
from jax import lax
from jax.scipy.special import ndtr
from jaxtyping import Array, Float

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf
from fluidserve.deploy.disaggregated import Plan, State, decoded_share, largest_rate
from fluidserve.queueing.closed import ClosedLaw, closed_law, closed_wait
from fluidserve.queueing.mgn import MAX_SERVERS
from fluidserve.stages.decode import (
    LEAST_RATE,
    DecodeState,
    lane_excess,
    slot_room,
    slots,
    step_growth,
    step_time,
)
from fluidserve.stages.kv_link import LinkState, link_state
from fluidserve.stages.prefill import prefill_state
from fluidserve.stages.windowed import prompt_moments

_ITERATIONS = 6
_BELOW_FULL = 1.0 - 1e-6
_BUSY_LINK = 0.9
_FULL_LINK = 0.995
_EQUAL = 1e-4
_LEAST_VARIABILITY = 0.02


def closed_state(
    plan: Plan, users: Float[Array, "..."], *, max_replicas: int = MAX_SERVERS
) -> tuple[State, Float[Array, "*c"]]:
    """The stages with a number of users, and the throughput, 1/s.

    A stage that is full all the time has a load just below 1, so that whatever reads the state
    takes it for one that carries its requests, as it does.

    Args:
      plan: the deployment; the variability of its arrivals is not used.
      users: requests in the deployment at any time.
      max_replicas: largest number of prefill instances.
    """
    system, shape = plan.system, plan.prefill
    n, mean = system.n_prefill, shape.mean
    users = jnp.broadcast_to(users, mean.shape).astype(mean.dtype)
    capacity, link_limit, _ = largest_rate(plan)
    behind, growth = _behind(plan, users, link_limit)
    alone = behind.holding(users, behind.lag + mean).rate
    fluid = jnp.minimum(alone, 0.999 * capacity)
    # a prompt is held up by those of the others
    prefill = prefill_state(shape, n, fluid * behind.others, max_replicas=max_replicas)
    lag = jnp.maximum(prefill.passage(plan.bins.in_share) - mean, 0.0)
    behind = dataclasses.replace(behind, lag=lag)
    away = jnp.maximum(users / fluid - mean, 0.0)
    law = closed_law(
        users,
        n,
        mean,
        behind.completing,
        variability=_variability(plan, fluid / capacity, away),
    )
    rate = law.rate
    there = behind.holding(law.away, behind.lag)
    link = _link(behind, law, there, link_limit)
    batch, excess = there.batch, there.excess
    prompt, _ = prompt_moments(plan.bins, system.prefill.kv)
    held = rate * (mean * shape.pp + behind.handover(rate))
    kept = jnp.maximum(n * system.prefill.kv_capacity / prompt - held, 0.0)
    stalled = jnp.maximum(excess - kept, 0.0) / behind.full_rate
    wait = closed_wait(law, n, shape.scv, n / mean, stalled * n / mean)
    prefill = dataclasses.replace(
        prefill,
        load=jnp.minimum(rate / capacity, _BELOW_FULL),
        wait=wait,
        unit=mean / n,
        stretch=jnp.ones_like(prefill.stretch),
    )
    state = State(
        prefill=prefill,
        link=link,
        decode=_decode(behind, law, users, batch, excess, kept, growth),
        handover=link.wait + link.transfer + system.handover_overhead,
        overflow=jnp.zeros_like(rate),
    )
    return state, rate


@pytree
class Behind:
    """What lies behind the first prefill stage, ready to be asked for its rate.

    Attributes:
      plan: the deployment.
      lag: mean pass through the other prefill stages, s.
      slower: what unequal lanes add to a decode step, as a share of it.
      others: users over which a request shares the link with others, as a share of all.
      link_limit: rate that saturates the link, 1/s.
      room: slots of a decode instance.
      full_batch: largest mean batch of an instance: with all slots taken, some of them by requests
        on the link, or with the link full.
      full_rate: requests that decode completes then, 1/s.
    """

    plan: Plan
    lag: Leaf
    slower: Leaf
    others: Leaf
    link_limit: Leaf
    room: Leaf
    full_batch: Leaf
    full_rate: Leaf

    def step(self, batch: Float[Array, "..."]) -> Float[Array, "..."]:
        """Time of a decode step of instances that hold `batch` requests on average, s."""
        decode, k = self.plan.system.decode, self.plan.system.n_decode
        # requests do not fall evenly on instances, and more of them see the larger batches
        uneven = jnp.minimum(0.25, batch) / jnp.maximum(batch, 1.0)
        seen = batch + jnp.where(k > 1.0, uneven, 0.0)
        lanes = jnp.minimum(batch / decode.pp, 1.0)
        return step_time(decode, self.plan.lengths, seen) * (1.0 + self.slower * lanes)

    def link(self, rate: Float[Array, "..."]) -> LinkState:
        """The link at a rate of requests, 1/s."""
        plan, system = self.plan, self.plan.system
        prompt, prompt_square = prompt_moments(plan.bins, system.kv)
        return link_state(
            rate * decoded_share(plan),
            system.kv_bytes_per_token / system.link_bandwidth,
            prompt,
            prompt_square,
            prefill_load=rate * plan.prefill.mean / system.n_prefill,
            n_prefill=jnp.broadcast_to(system.n_prefill, jnp.shape(rate)),
        )

    def handover(self, rate: Float[Array, "..."]) -> Float[Array, "..."]:
        """Mean time of the hand-over over all requests, those without one included, s."""
        link = self.link(jnp.minimum(rate, _BUSY_LINK * self.link_limit) * self.others)
        time = link.wait + link.transfer + self.plan.system.handover_overhead
        return decoded_share(self.plan) * time

    def rate_with(self, batch: Float[Array, "..."]) -> Float[Array, "..."]:
        """Requests that complete with a batch in every instance, 1/s."""
        k, steps = self.plan.system.n_decode, self.plan.lengths.mean_steps
        return k * batch / (steps * self.step(batch))

    def holding(self, requests: Float[Array, "..."], lag: Leaf) -> "Held":
        """Where so many requests are.

        Args:
          requests: how many.
          lag: time that each spends neither in hand-over nor in decode, s.
        """
        k, steps = self.plan.system.n_decode, self.plan.lengths.mean_steps

        def improve(_, batch):
            outside = lag + self.handover(self.rate_with(batch))
            inside = steps * self.step(batch)
            return requests / k * (inside / (inside + outside))

        batch = lax.fori_loop(0, _ITERATIONS, improve, requests / k)
        batch = jnp.minimum(batch, self.full_batch)
        rate = self.rate_with(batch)
        admitted = requests - rate * lag
        excess = admitted - k * self.room
        on_link = jnp.minimum(admitted, k * self.room) - k * batch
        return Held(batch=batch, rate=rate, excess=excess, on_link=jnp.maximum(on_link, 0.0))

    def completing(self, requests: Float[Array, "..."]) -> Float[Array, "..."]:
        """Rate at which requests complete when so many are here, 1/s."""
        return self.holding(requests, self.lag).rate


@pytree
class Held:
    """Requests behind the first prefill stage.

    Attributes:
      batch: in decode, of one instance.
      rate: requests that complete, 1/s.
      excess: beyond the slots of all instances; negative where slots are left.
      on_link: between slot and decode.
    """

    batch: Leaf
    rate: Leaf
    excess: Leaf
    on_link: Leaf


def _link(behind: Behind, law: ClosedLaw, held: Held, link_limit) -> LinkState:
    """The link, with the wait that follows from how many requests are on it (Little's law)."""
    system, rate = behind.plan.system, law.rate
    link = behind.link(rate)
    share = decoded_share(behind.plan)
    some = share > 1e-6
    handed = jnp.maximum(rate, LEAST_RATE) * jnp.where(some, share, 1.0)
    per_request = law.mean(held.on_link) / handed
    wait = per_request - link.transfer - system.handover_overhead
    return LinkState(
        load=jnp.minimum(rate / link_limit, _BELOW_FULL),
        wait=jnp.where(some & (link.transfer > 0.0), jnp.maximum(wait, 0.0), 0.0),
        transfer=link.transfer,
    )


def _behind(plan: Plan, users, link_limit):
    """What lies behind prefill, and how a decode step grows per request and per token."""
    decode, lengths = plan.system.decode, plan.lengths
    k, mean = plan.system.n_decode, plan.prefill.mean
    nothing = jnp.zeros_like(mean)
    room = slots(decode, lengths, plan.system.max_batch, nothing)
    # requests of one size leave no room that changes with their mix
    whole = jnp.minimum(jnp.floor(decode.kv_capacity / lengths.reserved), plan.system.max_batch)
    equal = lengths.reserved_var < _EQUAL * lengths.reserved**2
    room = jnp.where(equal, jnp.maximum(whole, 1.0), room)
    time, slope, per_token, unequal = step_growth(
        decode, lengths, jnp.minimum(users / k, room), lane_excess(decode)
    )
    behind = Behind(
        plan=plan,
        lag=(plan.prefill.pp - 1.0) * mean,
        slower=unequal / time,
        others=(users - 1.0) / users,
        link_limit=link_limit,
        room=room,
        full_batch=room,
        full_rate=link_limit,
    )

    def filling(_, batch):
        return jnp.minimum(rate * lengths.mean_steps * behind.step(batch) / k, room)

    # the batch that keeps the link busy, and the one that fills the slots
    rate = _FULL_LINK * link_limit
    busy_link = lax.fori_loop(0, 2 * _ITERATIONS, filling, room)
    full_batch = jnp.minimum(behind.holding(k * room, nothing).batch, busy_link)
    full_rate = behind.rate_with(full_batch)
    behind = dataclasses.replace(behind, full_batch=full_batch, full_rate=full_rate)
    return behind, (slope, per_token)


def _decode(behind: Behind, law: ClosedLaw, users, batch, excess, kept, growth) -> DecodeState:
    """The decode pool under a law of the number at prefill.

    Args:
      behind: what lies behind prefill.
      law: the law.
      users: in the deployment.
      batch: of an instance, in each state of the law.
      excess: requests beyond the slots there.
      kept: requests whose KV can wait in the prefill memory.
      growth: of a step per request and per token, s.
    """
    system, lengths = behind.plan.system, behind.plan.lengths
    n, k, pp = system.n_prefill, system.n_decode, system.decode.pp
    slope, per_token = growth
    mean = law.mean(batch)
    steps = behind.step(batch)
    seen = law.weight * batch / jnp.maximum(mean, 1e-9)  # by the requests in decode
    step = jnp.sum(seen * steps, axis=0)
    step_var = jnp.sum(seen * (steps - step) ** 2, axis=0)
    step_var = step_var + jnp.where(k > 1.0, 0.25, 0.0) * slope**2
    step_var = step_var + per_token**2 * lengths.context_var * mean
    tilt = jnp.clip(law.rate * lengths.mean_steps / k * slope, 0.0, 0.9)

    by_memory = slot_room(system.decode, lengths) < system.max_batch
    fill = jnp.where(by_memory, mean * lengths.reserved_var / lengths.reserved**2, 0.0)
    blur = jnp.sqrt(k * fill + 0.04)
    hold_scv = jnp.where(by_memory, lengths.hold_scv, lengths.steps_scv)
    # a request that comes to decode waits for as many completions as are ahead of it
    turn = excess + 1.0
    coming = law.weight * jnp.minimum(law.number, n)
    waiting = coming / jnp.sum(coming, axis=0) * ndtr((turn - 0.5) / blur)
    waits = jnp.sum(waiting, axis=0)
    share = waiting / jnp.maximum(waits, 1e-9)
    turn = jnp.clip(turn, 1.0, jnp.maximum(kept, 1.0))
    turn_mean = jnp.sum(share * turn, axis=0)
    turn_var = jnp.sum(share * (turn - turn_mean) ** 2, axis=0)
    turn_var = turn_var + turn_mean * 0.5 * (1.0 + hold_scv)
    turn_mean = jnp.maximum(turn_mean, 1e-6)  # no state that waits
    deviation = jnp.minimum(jnp.sqrt(turn_var + 1e-9), turn_mean)

    others = mean * (users - 1.0) / users
    full = law.rate * lengths.mean_steps * behind.step(behind.room) / (k * behind.room)
    return DecodeState(
        batch=mean,
        slots=behind.room,
        full=jnp.minimum(full, _BELOW_FULL),
        step=step,
        step_var=step_var,
        relaxation=lengths.residual / (1.0 - tilt),
        step_full=behind.step(behind.full_batch),
        waits=waits,
        drain=behind.full_rate / deviation,
        sure=(turn_mean - deviation) / behind.full_rate,
        # while lanes are idle, a request starts at once in one of them
        met=jnp.where(pp > 1.0, 2.0 * others / pp - 1.0, others),
    )


def _variability(
    plan: Plan, load: Float[Array, "*c"], away: Float[Array, "*c"]
) -> Float[Array, "*c"]:
    """Mean variability of the two flows, of prefill and of decode.

    A pool that serves every request at once, as decode nearly does, sends out a flow whose counts
    over long times vary as ``2 (1 - r) + (2 r - 1) c`` if what comes in varies as c; r is
    ``E min(o, o') / E o`` for two independent lengths o: 1 for equal ones, 1/2 for exponential
    ones. What comes in is the output of prefill, ``load**2 c_s + (1 - load**2) c_a``. Over times
    short against the spread of the stays in decode the flow is Poisson; the time that counts is
    the one in which the line of prefill forgets.

    Args:
      plan: the deployment.
      load: of prefill, below 1.
      away: mean time behind prefill, s.
    """
    lengths, share = plan.lengths, plan.bins.out_share
    least = jnp.minimum(lengths.steps[:, None], lengths.steps[None, :])
    r = jnp.sum(share[:, None] * share[None, :] * least) / lengths.mean_steps
    r = jnp.clip(r, 0.5, 1.0)
    service = jnp.clip(plan.prefill.scv, 0.0, 1.0)
    busy = jnp.clip(load, 0.05, 1.0) ** 2
    back = 2.0 * (1.0 - r) + (2.0 * r - 1.0) * busy * service
    back = back / (1.0 - (2.0 * r - 1.0) * (1.0 - busy))
    spread = jnp.sqrt(lengths.steps_scv + 1e-9) * away
    memory = plan.prefill.mean / plan.system.n_prefill / (1.0 - load)
    memory = jnp.minimum(memory, jnp.maximum(away, 1e-6))
    back = back + (1.0 - back) * spread / (spread + memory)
    return jnp.clip(0.5 * (service + back), _LEAST_VARIABILITY, 1.0)
