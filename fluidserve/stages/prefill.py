"""The prefill pool: n instances behind one FCFS queue or one each, and the TTFT behind them.

TTFT is the wait for a free first stage, plus the pass through `pp` stages, where a prompt can be
held up behind a longer one. Arrays have their bins on the first axis and candidates on the rest.

Ignores: stalls because the KV of finished prompts fills the memory (the deployment accounts for
those).
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf
from fluidserve.queueing.batch import BatchedWait, Batching, batching, fit_batches
from fluidserve.queueing.mgn import MAX_SERVERS, RAREST, WaitFit, fit_wait
from fluidserve.queueing.separate import fit_jsq, fit_renewal
from fluidserve.queueing.tandem import Ahead, ahead, at_levels
from fluidserve.queueing.transient import EarlyWait, early_wait
from fluidserve.specs.deployment import Dispatch
from fluidserve.specs.lengths import LengthBins
from fluidserve.stages.split import scv_at_one
from fluidserve.timing.instance import Instance

LEVELS = (0.0, 0.5, 0.8, 0.94, 0.985, 1.0)
"""Quantile levels that cut the longest prompt ahead into atoms, finer where it is long."""

MOST_TOGETHER = 1024
"""Most prompts in one pass of prefill where only tokens limit it."""

_LOADS = 33
_TOGETHER = 3.0
_SMALLEST_LOAD = 1e-4
_LARGEST_LOAD = 1.0 - 1e-4


@pytree
class PrefillShape:
    """What a prefill instance makes of a length distribution; independent of rate and replicas.

    Shapes: ``q`` prompt bins, ``r`` loads, ``j`` levels, ``*c`` instances.

    Attributes:
      low: stage time of the shortest prompt of each bin, s, (q, *c).
      high: stage time of the longest prompt of each bin, s, (q, *c).
      mean: mean stage time, s, (*c).
      scv: squared coefficient of variation of the stage time, (*c).
      edges: stage time at the edges of the bins, s, (q + 1, *c).
      ahead: longest prompt ahead of an arrival, over loads from 0 to 1 in equal steps; leaves are
        (r, q + 1, *c), in units of `mean`; None where no instance has several stages.
      pp: stages, (*c).
      batching: what an instance takes in one pass; None for one prompt at a time.
      row: place of each candidate's instance in the last axis of `ahead`, where many candidates
        share few instances; None where `ahead` has the shape of the candidates.
    """

    low: Leaf
    high: Leaf
    mean: Leaf
    scv: Leaf
    edges: Leaf
    ahead: Ahead | None
    pp: Leaf
    batching: Batching | None = None
    row: Leaf | None = None

    @property
    def busiest(self):
        """Time of an instance that a prompt takes when passes are full, s."""
        if self.batching is None:
            return self.mean
        shared = self.batching.shared
        return self.mean * (1.0 + shared / self.batching.full) / (1.0 + shared)


def prefill_shape(
    instance: Instance,
    bins: LengthBins,
    prefix_hit: Leaf | None = None,
    *,
    batch: int = 1,
    tokens: Leaf | None = None,
    pipelines: bool = True,
) -> PrefillShape:
    """Stage times of an instance over the prompt bins.

    Args:
      instance: the instance.
      bins: the prompts.
      prefix_hit: share of every prompt found in the prefix cache; None without one.
      batch: most prompts in one pass.
      tokens: most tokens computed in one pass that has several prompts; None for any number.
      pipelines: False where `pp` is 1 throughout, which leaves out whatever runs ahead.
    """

    def time(tokens: Float[Array, "q ..."]) -> Float[Array, "q *c"]:
        return instance.prefill_time(tokens, prefix_hit)

    def lead(x: Float[Array, " q"]) -> Float[Array, "q ..."]:
        return jnp.reshape(x, (*x.shape, *([1] * jnp.ndim(instance.pp))))

    share, centre, spread = lead(bins.in_share), lead(bins.in_mean), lead(bins.in_var)
    low, high = lead(bins.in_low), lead(bins.in_high)
    middle = time(centre)
    at_low, at_high = time(low), time(high)
    width = jnp.maximum(high - low, 1.0)
    slope = (at_high - at_low) / width
    quarter = time(0.5 * (low + high))
    curvature = 4.0 * (at_high - 2.0 * quarter + at_low) / width**2
    in_bin = middle + 0.5 * curvature * spread
    mean = jnp.sum(share * in_bin, axis=0)
    square = jnp.sum(share * (in_bin**2 + slope**2 * spread), axis=0)
    scv = jnp.maximum(square / mean**2 - 1.0, 0.0)

    edges = jnp.concatenate([at_low[:1], at_high])
    loads = jnp.clip(jnp.linspace(0.0, 1.0, _LOADS), _SMALLEST_LOAD, _LARGEST_LOAD)

    def at_load(load: Float[Array, ""]) -> Ahead:
        shares = jnp.broadcast_to(share, in_bin.shape)
        return ahead(edges / mean, in_bin / mean, shares, jnp.broadcast_to(load, mean.shape))

    pp = jnp.broadcast_to(instance.pp, mean.shape)
    return PrefillShape(
        low=at_low,
        high=at_high,
        mean=mean,
        scv=scv,
        edges=edges,
        ahead=jax.vmap(at_load)(loads) if pipelines else None,
        pp=pp,
        batching=_batching(instance, bins, prefix_hit, mean, scv, batch, tokens),
    )


def _batching(
    instance: Instance,
    bins: LengthBins,
    prefix_hit: Leaf | None,
    mean: Float[Array, "*c"],
    scv: Float[Array, "*c"],
    batch: int,
    tokens: Leaf | None,
) -> Batching | None:
    """What an instance takes in one pass; prompts of mean length tell what a pass shares."""
    if batch == 1:
        return None
    length = jnp.sum(bins.in_share * bins.in_mean)
    spread = jnp.sum(bins.in_share * (bins.in_mean**2 + bins.in_var)) / length**2 - 1.0
    one = instance.prefill_work(length, prefix_hit)
    several = jax.tree.map(lambda x: _TOGETHER * x, one)
    alone, together = instance.times.stage_time(one), instance.times.stage_time(several)
    fixed = jnp.clip((_TOGETHER * alone - together) / (_TOGETHER - 1.0), 0.0, 0.95 * mean)
    own = mean - fixed
    return batching(
        fixed / own,
        scv * (mean / own) ** 2,
        jnp.inf if tokens is None else tokens / one.new,
        jnp.maximum(spread, 0.0),
        most=batch,
    )


@pytree
class Delay:
    """What follows prefill before a request counts as done.

    Attributes:
      low: part that grows with the prompt, at the lower edge of each bin, s, (q, *c).
      high: the same at the upper edge.
      waits: chance of a wait besides, which is exponential, (*c).
      drain: rate of that wait, 1/s, (*c).
    """

    low: Leaf
    high: Leaf
    waits: Leaf
    drain: Leaf


@pytree
class PrefillState:
    """A prefill pool at one arrival rate.

    Attributes:
      load: busy share of the first stages, (*c); may exceed 1.
      wait: fitted wait, a `WaitFit` in units of ``mean / replicas`` at a load held below 1; a
        `ClosedWait` in a closed loop, an `EarlyWait` where one of the first requests is looked at.
      unit: that unit, s, (*c).
      weight: share of each atom of the longest prompt ahead, (j,).
      after_idle: longest prompt ahead of one that does not wait, s, (j, *c), one per atom.
      after_wait: the same for one that waits, s, (j, *c).
      stretch: mean wait in each of these atoms over the mean of all waits, (j, *c).
      low: stage time at the lower edge of each prompt bin, s, (q, *c).
      high: the same at the upper edge.
      mean: mean stage time, s, (*c).
      pp: stages, (*c).
    """

    load: Leaf
    wait: Leaf
    unit: Leaf
    weight: Leaf
    after_idle: Leaf
    after_wait: Leaf
    stretch: Leaf
    low: Leaf
    high: Leaf
    mean: Leaf
    pp: Leaf

    def sojourn(self, stage: Float[Array, "..."], ahead: Float[Array, "..."]):
        """Pass of a prompt through the stages behind the longest one ahead, s."""
        return stage + (self.pp - 1.0) * jnp.maximum(stage, ahead)

    def passage(self, share: Float[Array, " q"]) -> Float[Array, "*c"]:
        """Mean time from the start of prefill to its end over the prompts, s."""
        middle = 0.5 * (self.low + self.high)

        def passing(ahead):
            by_atom = jnp.tensordot(share, self.sojourn(middle[:, None], ahead), axes=1)
            return jnp.tensordot(self.weight, by_atom, axes=1)

        alone = jnp.tensordot(share, middle, axes=1) * self.pp
        held_up = passing(self.after_idle) - alone
        held_up = held_up + self.wait.busy * (passing(self.after_wait) - alone - held_up)
        return self.mean * self.pp + held_up

    def within(
        self,
        limit: Float[Array, "..."] | float,
        delay: Delay | None = None,
    ) -> Float[Array, "q *c"]:
        """Share of each prompt bin that is done within `limit` seconds of its arrival.

        Zero where the pool is overloaded.

        Args:
          limit: from arrival to the end of prefill, or of what follows it, s.
          delay: what follows prefill, independent of the wait for it; nothing by default.
        """

        def add_atom(total, atom):
            weight, after_idle, after_wait, stretch = atom
            part, slack = self._in_time(limit, delay, after_idle)
            late = delay.waits * jnp.exp(-delay.drain * slack) if delay else 0.0
            at_once = part * (1.0 - late)
            part, slack = self._in_time(limit, delay, after_wait)
            waited = part * (1.0 - self._late(slack, delay, self.unit * stretch))
            return total + weight * (at_once + self.wait.busy * (waited - at_once)), None

        shape = jnp.broadcast_shapes(jnp.shape(self.low), jnp.shape(limit), jnp.shape(self.load))
        atoms = (self.weight, self.after_idle, self.after_wait, self.stretch)
        total, _ = lax.scan(add_atom, jnp.zeros(shape, self.low.dtype), atoms)
        return jnp.where(self.load < 1.0, total, 0.0)

    def _late(self, slack, delay: Delay | None, unit):
        """Chance that a wait for prefill, and the one after it, take longer than `slack`."""
        busy = jnp.maximum(self.wait.busy, RAREST)  # underflows with many idle instances
        late = self.wait.tail(slack / unit) / busy
        if delay is None:
            return late
        if isinstance(self.wait, EarlyWait):
            both = self.wait.tail_with(slack / unit, delay.drain * unit) / busy
            return late + delay.waits * (jnp.minimum(both, 1.0) - late)
        both = self.wait.behind(slack, unit, delay.drain, busy)
        return late + delay.waits * (both - late)

    def _in_time(self, limit, delay, ahead):
        """Share of each bin short enough for the limit, and what its middle leaves for waiting."""
        low, high = (delay.low, delay.high) if delay else (0.0, 0.0)
        at_low = limit - self.sojourn(self.low, ahead) - low
        at_high = limit - self.sojourn(self.high, ahead) - high
        width = jnp.maximum(at_low - at_high, 1e-9)
        part = jnp.clip(at_low / width, 0.0, 1.0)
        return part, jnp.maximum(at_low - 0.5 * part * width, 0.0)


def prefill_state(
    shape: PrefillShape,
    replicas: Float[Array, "*c"],
    rate: Float[Array, "*c"],
    *,
    arrival_scv: Float[Array, "..."] | float = 1.0,
    dispatch: Dispatch = "shared",
    max_replicas: int = MAX_SERVERS,
) -> PrefillState:
    """The pool at an arrival rate.

    Args:
      shape: of its instances.
      replicas: instances.
      rate: requests arriving at the pool, 1/s.
      arrival_scv: squared coefficient of variation between arrivals.
      dispatch: how prompts are spread over the instances.
      max_replicas: largest value of `replicas`.
    """
    if shape.batching is None:
        load, unit = rate * shape.mean / replicas, shape.mean
        rho = jnp.clip(load, _SMALLEST_LOAD, _LARGEST_LOAD)
        wait, busy, replicas = _wait(
            dispatch, rho, replicas, shape.scv, shape.pp, arrival_scv, max_replicas
        )
    else:
        unit = shape.mean / (1.0 + shape.batching.shared)
        found, busy, replicas = _batched(
            dispatch, rate * unit / replicas, replicas, shape, arrival_scv, max_replicas
        )
        load, wait = found.load, found.wait
        rho = jnp.clip(load, _SMALLEST_LOAD, _LARGEST_LOAD)
    weight, after_idle, after_wait, stretch = _held_up(shape, replicas, rho, busy)
    return PrefillState(
        load=load,
        wait=wait,
        unit=unit / replicas,
        weight=weight,
        after_idle=after_idle,
        after_wait=after_wait,
        stretch=stretch,
        low=shape.low,
        high=shape.high,
        mean=shape.mean,
        pp=shape.pp,
    )


def _wait(
    dispatch: Dispatch,
    rho: Float[Array, "*c"],
    replicas: Float[Array, "*c"],
    scv: Float[Array, "*c"],
    pp: Float[Array, "*c"],
    arrival_scv: Float[Array, "..."] | float,
    max_replicas: int,
) -> tuple[WaitFit, Float[Array, "*c"], Float[Array, "*c"]]:
    """The wait under a rule, the load that runs of a row grow by, and the instances of a queue."""
    if dispatch in ("shared", "jsq"):
        wait = fit_wait(rho, replicas, scv, arrival_scv, max_servers=max_replicas)
        busy = wait.busy
        if dispatch == "jsq":
            wait = fit_jsq(wait, replicas, scv, stages=pp)
        return wait, busy, replicas
    one = jnp.ones_like(replicas)
    gaps = scv_at_one(dispatch, arrival_scv, replicas)
    wait = fit_wait(rho, one, scv, gaps, max_servers=1)
    if dispatch == "round-robin":
        in_turn = fit_renewal(rho, scv, gaps)
        wait = jax.tree.map(lambda x, y: jnp.where(replicas > 1.0, x, y), in_turn, wait)
    return wait, rho, one


def early_prefill(
    state: PrefillState,
    shape: PrefillShape,
    replicas: Float[Array, "*c"],
    customer: Float[Array, "..."],
    *,
    arrival_scv: Float[Array, "..."] | float = 1.0,
    dispatch: Dispatch = "shared",
) -> PrefillState:
    """The pool as one of the first requests finds it that came to it when it was empty.

    What runs ahead in a pipeline is taken as in steady state.

    Args:
      state: the pool in steady state; its load may exceed 1.
      shape: of its instances.
      replicas: instances.
      customer: requests that came before.
      arrival_scv: squared coefficient of variation between arrivals.
      dispatch: how requests are spread; each instance has a queue of its own unless shared or jsq.

    Returns:
      the state, with a load of 0: a short run carries any load.
    """
    servers, gaps = replicas, arrival_scv
    if dispatch not in ("shared", "jsq"):
        gaps, customer = scv_at_one(dispatch, arrival_scv, replicas), customer / replicas
        servers = jnp.ones_like(replicas)
    wait = early_wait(state.wait, customer, state.load, servers, shape.scv, gaps)
    return dataclasses.replace(state, wait=wait, load=jnp.zeros_like(state.load))


def _batched(
    dispatch: Dispatch,
    offered: Float[Array, "*c"],
    replicas: Float[Array, "*c"],
    shape: PrefillShape,
    arrival_scv: Float[Array, "..."] | float,
    max_replicas: int,
) -> tuple[BatchedWait, Float[Array, "*c"], Float[Array, "*c"]]:
    """As `_wait`, for instances that take several prompts in one pass."""
    assert shape.batching is not None

    def alone(rho, scv):
        return _wait(dispatch, rho, replicas, scv, shape.pp, arrival_scv, max_replicas)[0]

    one = jnp.ones_like(replicas)
    lined_up = replicas if dispatch == "shared" else one
    servers = replicas if dispatch in ("shared", "jsq") else one
    # the fewest prompts get the next one, so that arrivals there are as regular as taken in turn
    gaps = scv_at_one("round-robin" if dispatch == "jsq" else dispatch, arrival_scv, replicas)
    found = fit_batches(
        offered,
        servers,
        shape.batching,
        alone,
        lined_up=lined_up,
        arrival_scv=gaps,
        stages=shape.pp,
    )
    busy = found.wait.busy if dispatch in ("shared", "jsq") else found.load
    return found, busy, servers


def _held_up(shape: PrefillShape, replicas, rho, busy):
    """Weights, longest prompts ahead after idle time and after a wait, and stretch of the atoms."""
    if shape.ahead is None:
        nothing = jnp.zeros((1, *jnp.shape(rho)), rho.dtype)
        return jnp.ones(1, rho.dtype), nothing, nothing, nothing + 1.0
    run = _at_load(shape, shape.ahead, busy)
    # runs start in idle time; a row behind a shared line is idle less often than it is waited for
    starts = rho * (1.0 - busy) / (1.0 - rho)
    faded = jnp.exp(-starts * (shape.pp - 1.0) * run.reach)
    cdf, waits = run.cdf * faded, run.wait * faded
    middles = tuple(0.5 * (a + b) for a, b in itertools.pairwise(LEVELS))
    both = at_levels(middles, jnp.stack([faded, cdf], axis=1), shape.edges[:, None])
    mean_wait = at_levels(LEVELS, cdf, waits)
    weight = jnp.diff(jnp.array(LEVELS, rho.dtype))
    lead = jnp.reshape(weight, (-1, *([1] * jnp.ndim(rho))))
    relative = jnp.diff(mean_wait, axis=0) / (lead * run.wait[-1])
    stretch = jnp.maximum(1.0 + (relative - 1.0) / replicas, 0.05)
    # in a single stage nothing is held up, so one wait serves all, whatever ran ahead
    return weight, both[:, 0], both[:, 1], jnp.where(shape.pp > 1.0, stretch, 1.0)


def _at_load(shape: PrefillShape, table: Ahead, load: Float[Array, "*c"]) -> Ahead:
    """Interpolates the table of an instance over loads."""
    at = jnp.clip(load, 0.0, 1.0) * (_LOADS - 1)
    index = jnp.clip(jnp.floor(at).astype(int), 0, _LOADS - 2)
    part = at - index

    def row(leaf: Float[Array, "r e ..."], index: Array) -> Float[Array, "e *c"]:
        if shape.row is None:
            along = jnp.reshape(index, (1, 1, *jnp.shape(index)))
            return jnp.take_along_axis(leaf, along, axis=0)[0]
        return jnp.moveaxis(leaf[index, :, shape.row], -1, 0)

    def between(leaf: Float[Array, "r e ..."]) -> Float[Array, "e *c"]:
        below, above = row(leaf, index), row(leaf, index + 1)
        return below + part * (above - below)

    return jax.tree.map(between, table)
