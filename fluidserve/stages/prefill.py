"""The prefill pool: n instances behind one FCFS queue, and the TTFT that comes out of it.

TTFT is the wait for a free first stage, plus the pass through `pp` stages, where a prompt can be
held up behind a longer one. Arrays have their bins on the first axis and candidates on the rest.

Ignores: several prompts in one pass (prefill_batch > 1 changes goodput by up to 9 % where prompts
are much shorter than L_m); jobs of earlier busy periods in a pipeline; stalls because the KV of
finished prompts fills the memory (the deployment accounts for those).
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf
from fluidserve.queueing.mgn import MAX_SERVERS, WaitFit, fit_wait
from fluidserve.queueing.tandem import longest_ahead_quantiles
from fluidserve.specs.lengths import LengthBins
from fluidserve.timing.instance import Instance
from fluidserve.timing.model import prefill_time

LEVELS = (0.125, 0.375, 0.625, 0.875)
"""Quantiles that stand for the longest prompt ahead in a pipeline."""

_LOADS = 33
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
      ahead: longest prompt ahead given a busy instance, as stage time, s, (r, j, *c), over loads
        from 0 to 1 in equal steps.
      pp: stages, (*c).
    """

    low: Leaf
    high: Leaf
    mean: Leaf
    scv: Leaf
    ahead: Leaf
    pp: Leaf


def prefill_shape(instance: Instance, bins: LengthBins) -> PrefillShape:
    """Stage times of an instance over the prompt bins."""

    def lead(x: Float[Array, " q"]) -> Float[Array, "q ..."]:
        return jnp.reshape(x, (*x.shape, *([1] * jnp.ndim(instance.pp))))

    share, centre, spread = lead(bins.in_share), lead(bins.in_mean), lead(bins.in_var)
    low, high = lead(bins.in_low), lead(bins.in_high)
    middle = prefill_time(instance.times, centre)
    at_low, at_high = prefill_time(instance.times, low), prefill_time(instance.times, high)
    width = jnp.maximum(high - low, 1.0)
    slope = (at_high - at_low) / width
    quarter = prefill_time(instance.times, 0.5 * (low + high))
    curvature = 4.0 * (at_high - 2.0 * quarter + at_low) / width**2
    in_bin = middle + 0.5 * curvature * spread
    mean = jnp.sum(share * in_bin, axis=0)
    square = jnp.sum(share * (in_bin**2 + slope**2 * spread), axis=0)
    scv = jnp.maximum(square / mean**2 - 1.0, 0.0)

    loads = jnp.clip(jnp.linspace(0.0, 1.0, _LOADS), _SMALLEST_LOAD, _LARGEST_LOAD)
    loads = jnp.reshape(loads, (_LOADS, *([1] * jnp.ndim(mean))))

    def over_loads(x: Float[Array, "q *c"]) -> Float[Array, "q r *c"]:
        return jnp.broadcast_to(x[:, None], (x.shape[0], _LOADS, *jnp.shape(mean)))

    ahead = longest_ahead_quantiles(
        over_loads(at_low),
        over_loads(at_high),
        over_loads(in_bin / mean),
        over_loads(jnp.broadcast_to(share, in_bin.shape)),
        loads,
        LEVELS,
    )
    pp = jnp.broadcast_to(instance.pp, mean.shape)
    return PrefillShape(
        low=at_low, high=at_high, mean=mean, scv=scv, ahead=jnp.moveaxis(ahead, 0, 1), pp=pp
    )


@pytree
class PrefillState:
    """A prefill pool at one arrival rate.

    Attributes:
      load: busy share of the first stages, (*c); may exceed 1.
      wait: fitted wait, in units of ``mean / replicas``, at a load held below 1.
      unit: that unit, s, (*c).
      ahead: longest prompt ahead at each level, s, (j, *c).
      shape: the instance.
    """

    load: Leaf
    wait: WaitFit
    unit: Leaf
    ahead: Leaf
    shape: PrefillShape

    def sojourn(self, stage: Float[Array, "..."], ahead: Float[Array, "..."]):
        """Pass of a prompt through the stages behind the longest one ahead, s."""
        return stage + (self.shape.pp - 1.0) * jnp.maximum(stage, ahead)

    def within(self, limit: Float[Array, "*c"]) -> Float[Array, "q *c"]:
        """Share of each prompt bin whose prefill ends within `limit` seconds of its arrival.

        Zero where the pool is overloaded.
        """
        alone = self._share(limit, jnp.zeros_like(self.ahead[0]), waited=False)
        behind = self._share(limit, self.ahead[:, None], waited=True)
        total = alone + self.wait.busy * (jnp.mean(behind, axis=0) - alone)
        return jnp.where(self.load < 1.0, total, 0.0)

    def _share(self, limit, ahead, *, waited: bool):
        """Share of each bin in time, behind a given longest prompt, after a wait or without one."""
        at_low = limit - self.sojourn(self.shape.low, ahead)
        at_high = limit - self.sojourn(self.shape.high, ahead)
        width = jnp.maximum(at_low - at_high, 1e-9)
        part = jnp.clip(at_low / width, 0.0, 1.0)
        if not waited:
            return part
        slack = at_low - 0.5 * part * width
        late = self.wait.tail(slack / self.unit) / self.wait.busy
        return part * (1.0 - late)


def prefill_state(
    shape: PrefillShape,
    replicas: Float[Array, "*c"],
    rate: Float[Array, "*c"],
    *,
    arrival_scv: Float[Array, "*c"] | float = 1.0,
    max_replicas: int = MAX_SERVERS,
) -> PrefillState:
    """The pool at an arrival rate.

    Args:
      shape: of its instances.
      replicas: instances.
      rate: requests arriving at the pool, 1/s.
      arrival_scv: squared coefficient of variation between arrivals.
      max_replicas: largest value of `replicas`.
    """
    load = rate * shape.mean / replicas
    rho = jnp.clip(load, _SMALLEST_LOAD, _LARGEST_LOAD)
    wait = fit_wait(rho, replicas, shape.scv, arrival_scv, max_servers=max_replicas)
    at = rho * (_LOADS - 1)
    index = jnp.clip(jnp.floor(at).astype(int), 0, _LOADS - 2)
    part = at - index
    row = jnp.reshape(index, (1, 1, *jnp.shape(index)))
    below = jnp.take_along_axis(shape.ahead, row, axis=0)[0]
    above = jnp.take_along_axis(shape.ahead, row + 1, axis=0)[0]
    ahead = below + part * (above - below)
    return PrefillState(load=load, wait=wait, unit=shape.mean / replicas, ahead=ahead, shape=shape)
