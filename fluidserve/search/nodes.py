"""Values of pools over their own rates: where the nodes lie, and what is between them.

Nodes are closest together around the largest rate at which the pool alone would meet the target,
further apart towards 0 and saturation. Between nodes values are taken as straight.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf
from fluidserve.goodput import root_rate

_BELOW, _ABOVE = 48, 16
NODES = _BELOW + _ABOVE + 1
"""Nodes of a pool over its rates."""
_SHARPNESS = 0.01
_IDLE = 0.003
_ALMOST = 1.0 - 1e-6


@pytree
class Table:
    """Values of pools over their own rates. Shapes: ``p`` pools, ``a`` axis, ``r`` channels.

    Attributes:
      alone: largest rate at which the pool by itself meets the target, 1/s; 0 where none, (p,).
      anchor: rate around which the nodes lie closest together, 1/s, (p,).
      end: rate that saturates the pool, 1/s, (p,).
      values: (r, a, p * nodes).
    """

    alone: Leaf
    anchor: Leaf
    end: Leaf
    values: Leaf


def tabulate(attained: Any, at_node: Any, target: Leaf, end: Float[Array, " c"]) -> Table:
    """Finds where a pool alone stops to meet the target and evaluates it around there."""
    alone, _ = root_rate(lambda rate, _: attained(rate), lambda share: share, target, end)
    anchor = jnp.where(alone > 0.0, alone, 0.5 * end)
    reach = _reach(anchor, end)
    above = jnp.arange(1, _ABOVE + 1, dtype=end.dtype) / _ABOVE
    over = anchor * (1.0 + _SHARPNESS * jnp.sinh(above[:, None] * reach))
    under = anchor * jnp.array(_nodes_below(), end.dtype)[:, None]
    rates = jnp.clip(jnp.concatenate([under, over]), 1e-6 * anchor, _ALMOST * end)
    return Table(alone=alone, anchor=anchor, end=end, values=lax.map(at_node, rates))


def _stretched(share, xp=jnp):
    """Where a share of the anchor lies between 0 and 1 on an axis stretched at both ends."""
    near_idle = xp.arcsinh(share / _IDLE) / np.arcsinh(1.0 / _IDLE)
    near_anchor = xp.arcsinh((1.0 - share) / _SHARPNESS) / np.arcsinh(1.0 / _SHARPNESS)
    return near_idle / 3.0 + (1.0 - near_anchor) * (2.0 / 3.0)


def _nodes_below() -> np.ndarray:
    """Shares of the anchor at equal steps of that axis, from 0 to 1."""
    wanted = np.arange(_BELOW + 1) / _BELOW
    low, high = np.zeros(_BELOW + 1), np.ones(_BELOW + 1)
    for _ in range(60):
        middle = 0.5 * (low + high)
        beyond = _stretched(middle, np) > wanted
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    return 0.5 * (low + high)


def _reach(anchor, end):
    """Where saturation lies on the stretched axis."""
    return jnp.arcsinh(jnp.maximum(end / anchor - 1.0, 1e-6) / _SHARPNESS)


def read(table: Table, pool: Int[Array, "*c"], rate: Float[Array, "..."]) -> Float[Array, "r a *c"]:
    """Values of pools at a rate, 1/s; meaningless at or beyond the end of a pool."""
    index, part = _node(table, pool, rate)
    low, high = (jnp.take(table.values, i, axis=-1) for i in (index, index + 1))
    return low + part * (high - low)


def read_at(
    table: Table, pool: Int[Array, "*c"], rate: Float[Array, "*c"], place: Float[Array, "*c"]
) -> Float[Array, "r *c"]:
    """Values of pools at a rate, 1/s, and at a place among the nodes of the other axis.

    The same as between the values of `read`, without those that are not needed.
    """
    index, part = _node(table, pool, rate)
    channels, axis, length = table.values.shape
    first = jnp.clip(jnp.floor(place).astype(int), 0, max(axis - 2, 0))
    index, aside = index + first * length, jnp.clip(place - first, 0.0, 1.0)

    def of_channel(values):
        def along_rate(index):
            low, high = (jnp.take(values, i, mode="clip") for i in (index, index + 1))
            return low + part * (high - low)

        low = along_rate(index)
        return low if axis == 1 else low + aside * (along_rate(index + length) - low)

    # a loop, so that XLA computes once where to read and not again for every channel
    return lax.map(of_channel, jnp.reshape(table.values, (channels, axis * length)))


def _node(table: Table, pool: Int[Array, "*c"], rate: Float[Array, "..."]) -> tuple[Array, Array]:
    """Index of the node below a rate, and the share of the way to the next one."""
    anchor, end = table.anchor[pool], table.end[pool]
    share = rate / anchor
    under = _BELOW * _stretched(jnp.minimum(share, 1.0))
    beyond = jnp.arcsinh(jnp.maximum(share - 1.0, 0.0) / _SHARPNESS)
    over = _BELOW + _ABOVE * beyond / _reach(anchor, end)
    at = jnp.clip(jnp.where(share < 1.0, under, over), 0.0, _BELOW + _ABOVE - 1e-3)
    node = jnp.floor(at).astype(int)
    return pool * NODES + node, at - node
