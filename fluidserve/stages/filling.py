r"""A decode pool that starts empty: its batch while it fills, and while it drains at the end.

Requests that entered when :math:`v_0` steps had been made leave when :math:`v_0 + o` have. With
:math:`K(x) = E\min(o, x)`, requests that come in evenly while the count of steps goes from
:math:`v_a` to :math:`v_b` still hold the share

.. math:: \frac{K(v - v_a) - K(v - v_b)}{v_b - v_a}

of their slots at step v. Time is cut into cells; in each the batch sets the step time, and the step
time the count of steps. Beyond the slots requests queue, and a cell admits what has room.

This is the fluid limit: no chance in it. Its plateau is the stationary batch of
`fluidserve.stages.decode`.

Ignores: that early contexts are shorter than those of the plateau.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf
from fluidserve.stages.decode import DecodeLengths, DecodeState, step_time
from fluidserve.timing.instance import Instance

FILLING, DRAINING = 16, 8
"""Cells while requests come, and after the last one."""
_GROUP = 3
_LEAST = 1e-6


@pytree
class Filling:
    """Paths of a pool's instance; edges of cells on the first axis, candidates on the rest.

    Attributes:
      time: since the first request came, s, (g + 1, *c).
      made: decode steps made since then, (g + 1, *c).
      batch: requests in decode, (g + 1, *c).
      admitted: requests admitted so far, (g + 1, *c).
    """

    time: Leaf
    made: Leaf
    batch: Leaf
    admitted: Leaf


def filling(
    instance: Instance,
    lengths: DecodeLengths,
    replicas: Float[Array, "*c"],
    rate: Float[Array, "*c"],
    last: Float[Array, "*c"],
    *,
    share: Float[Array, " m"],
    state: DecodeState,
) -> Filling:
    """The pool from empty to empty.

    Args:
      instance: one of its instances.
      lengths: moments of the requests.
      replicas: instances, filled evenly.
      rate: requests arriving at the pool, 1/s.
      last: when the last one comes, s.
      share: of the requests, in each output bin.
      state: the pool in steady state, for its slots and its unequal lanes.
    """
    room = state.slots
    unequal = state.step_full - step_time(instance, lengths, room)
    cells = FILLING + DRAINING
    ends = jnp.linspace(0.0, 1.0, FILLING + 1) ** 2
    lengths_of = jnp.concatenate([jnp.diff(ends), jnp.zeros(DRAINING)])
    shape = jnp.broadcast_to(rate, jnp.shape(room))
    zero = jnp.zeros_like(shape)

    def lead(x):
        return jnp.reshape(x, (*jnp.shape(x), *([1] * jnp.ndim(shape))))

    inflow = shape / replicas
    steps, weight = (lead(x) for x in _grouped(lengths.steps, share))

    def held(x):
        """K of one entry per candidate, 0 for negative ones."""
        return jnp.sum(weight * jnp.clip(x, 0.0, steps), axis=0)

    def pace_of(batch):
        return step_time(instance, lengths, batch + 1.0 / replicas) + unequal

    def one(carry, cell):
        index, part = cell
        made, entered, batch, trend, queue, admitted, span = carry
        now, filling = made[index], index < FILLING
        # after the last request: as many steps as the longest takes, and what the queue takes
        left = (jnp.max(lengths.steps) + queue * lengths.mean_steps / room) / DRAINING
        span = jnp.where(index == FILLING, left, span)
        length = jnp.where(filling, part * last, span * pace_of(batch))
        # the batch in the middle of the cell, if it goes on as before
        pace = pace_of(jnp.clip(batch + 0.5 * trend * length, 0.0, room))
        to = now + jnp.where(filling, length / pace, span)
        length = (to - now) * pace
        come = queue + jnp.where(filling, inflow * length, 0.0)
        ages = jax.vmap(held)(to - made)  # of what entered before each edge
        width = jnp.maximum(made[1:] - made[:-1], _LEAST)
        still = jnp.sum(entered * (ages[:-1] - ages[1:]) / width, axis=0)
        fresh = held(to - now) / jnp.maximum(to - now, _LEAST)
        taken = jnp.clip((room - still) / jnp.maximum(fresh, _LEAST), 0.0, come)
        following = still + taken * fresh
        later = jnp.arange(made.shape[0]) > index
        made = jnp.where(lead(later), to, made)
        entered = entered.at[index].set(taken)
        trend = (following - batch) / jnp.maximum(length, _LEAST)
        carry = (made, entered, following, trend, come - taken, admitted + taken, span)
        return carry, (length, to, following, admitted + taken)

    paths = jnp.zeros((cells + 1, *shape.shape), shape.dtype)
    start = (paths, paths[1:], zero, inflow, zero, zero, zero)
    _, found = jax.lax.scan(one, start, (jnp.arange(cells), lengths_of))
    length, made, batch, admitted = (jnp.concatenate([zero[None], x]) for x in found)
    return Filling(time=jnp.cumsum(length, axis=0), made=made, batch=batch, admitted=admitted)


def along(
    at: Float[Array, "g1 *c"], path: Float[Array, "g1 *c"], x: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Linear interpolation of `path` over increasing `at`, level beyond the ends.

    Candidates are on the last axes, so this is a sum over cells and no search.
    """
    width = jnp.diff(at, axis=0)
    slope = jnp.where(width > 0.0, jnp.diff(path, axis=0) / jnp.maximum(width, _LEAST), 0.0)

    def add(j, total):
        return total + slope[j] * jnp.clip(x - at[j], 0.0, width[j])

    start = jnp.zeros(jnp.broadcast_shapes(jnp.shape(x), jnp.shape(at)[1:]), slope.dtype)
    return path[0] + jax.lax.fori_loop(0, width.shape[0], add, start)


def _grouped(steps: Float[Array, " m"], share: Float[Array, " m"]) -> tuple[Array, Array]:
    """Output bins in groups of `_GROUP`, which the fluid cannot tell apart; single tokens alone."""
    rest, weight = steps[1:], share[1:]
    padding = (0, -rest.shape[0] % _GROUP)
    rest, weight = (jnp.pad(x, padding).reshape(-1, _GROUP) for x in (rest, weight))
    total = jnp.sum(weight, axis=1)
    mean = jnp.sum(rest * weight, axis=1) / jnp.maximum(total, _LEAST)
    return jnp.concatenate([steps[:1], mean]), jnp.concatenate([share[:1], total])
