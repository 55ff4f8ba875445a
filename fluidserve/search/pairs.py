"""Attainment and goodput of pairs of pools out of their tables."""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from fluidserve._typing import Leaf
from fluidserve.deploy.disaggregated import overflow_of
from fluidserve.goodput import root_rate
from fluidserve.search.first_steps import FirstSteps
from fluidserve.search.nodes import read, read_at
from fluidserve.search.tables import WAITS, Memory, Tables
from fluidserve.stages.decode import joining_time
from fluidserve.stages.kv_link import link_state, unevenness

CHUNK = 4096


@jax.jit
def attainment_of_all(tables: Tables, rate: Leaf) -> Float[Array, "p d"]:
    """Joint attainment of every prefill pool with every decode pool at one rate, 1/s.

    Pools in the order of the tables, the padding behind them included. Shares far below the target,
    where nodes are few, are up to 0.05 off.
    """
    every = jnp.arange(tables.prefill.end.size)
    prefill = read(tables.prefill, every, rate)
    decode = read(tables.decode, every, rate)[..., None, :]
    able = (rate < tables.prefill.end)[:, None] & (rate < tables.decode.end)
    memory = jax.tree.map(lambda x: x[:, None], tables.memory)
    steps = jax.tree.map(lambda x: x[:, None] if jnp.ndim(x) else x, tables.first_steps)
    joint = _joint(
        tables,
        memory,
        steps,
        functools.partial(_picked, prefill),
        functools.partial(_between, decode),
        rate,
    )
    return jnp.where(able, joint, 0.0)


def goodput_of_pairs(tables: Tables, prefill: np.ndarray, decode: np.ndarray) -> np.ndarray:
    """Goodput of pairs of pools, 1/s; 0 where the SLO is out of reach.

    Args:
      tables: of the pools.
      prefill: index of the prefill pool of each pair.
      decode: index of its decode pool.
    """
    count = len(prefill)
    room = CHUNK
    while room < count:
        room *= 2
    index = np.zeros((2, room), np.int32)
    index[:, :count] = prefill, decode
    return np.asarray(_solve(tables, index, count))[:count]


@jax.jit
def _solve(tables: Tables, index: Array, count: Leaf) -> Float[Array, " n"]:
    """Goodput of the first `count` pairs, chunk by chunk."""

    def one_chunk(i, found):
        start = jnp.asarray(i * CHUNK, jnp.int32)
        prefill, decode = lax.dynamic_slice(index, (0 * start, start), (2, CHUNK))
        return lax.dynamic_update_slice(found, _goodput(tables, prefill, decode), (start,))

    blank = jnp.zeros(index.shape[1], tables.prefill.end.dtype)
    return lax.fori_loop(0, (count + CHUNK - 1) // CHUNK, one_chunk, blank)


def _goodput(tables: Tables, prefill: Array, decode: Array) -> Float[Array, " n"]:
    memory = jax.tree.map(lambda x: x[prefill], tables.memory)
    steps = jax.tree.map(lambda x: x[prefill] if jnp.ndim(x) else x, tables.first_steps)

    def attained(rate, _):
        return _joint(
            tables,
            memory,
            steps,
            functools.partial(read_at, tables.prefill, prefill, rate),
            functools.partial(read_at, tables.decode, decode, rate),
            rate,
        )

    upper = jnp.minimum(tables.prefill.end[prefill], tables.decode.end[decode])
    found, _ = root_rate(attained, lambda share: share, tables.question.slo.attainment, upper)
    return found


def _joint(
    tables: Tables,
    memory: Memory,
    steps: FirstSteps | None,
    prefill: Callable[[Array], Sequence[Array] | Array],
    decode: Callable[[Array], Sequence[Array] | Array],
    rate: Leaf,
) -> Float[Array, "..."]:
    """Joint attainment of pairs of pools; shapes broadcast.

    Args:
      tables: of the pools.
      memory: of the prefill pools.
      steps: nodes of the first decode step behind them.
      prefill: channels of the prefill pools at places among these nodes.
      decode: channels of the decode pools at places among the nodes of the link's wait.
      rate: 1/s.
    """
    question, link = tables.question, tables.link
    rate = jnp.broadcast_to(rate, memory.mean.shape)
    load = rate * memory.mean / memory.count
    g = decode(unevenness(load, memory.count) * (len(WAITS) - 1.0))
    waits, drain, step, found = (g[i] for i in range(tables.terms, tables.terms + 4))
    after = joining_time(step, found) + step  # straight between nodes, unlike their sum
    handed = link_state(
        rate * link.decoded,
        link.seconds_per_token,
        link.prompt,
        link.prompt_square,
        prefill_load=load,
        n_prefill=memory.count,
    )
    handover = handed.wait + handed.transfer + question.handover_overhead
    overflow = overflow_of(
        rate, room=memory.room, passing=memory.passing + handover, waits=waits, drain=drain
    )
    f = prefill(jnp.zeros_like(after) if steps is None else steps.place(after))
    joint = functools.reduce(jnp.add, (f[r] * g[r] for r in range(tables.terms)))
    joint = joint * (1.0 - overflow)
    if question.first_token == "decode":
        slack = jnp.maximum(question.slo.ttft - f[tables.terms] - handover - after, 0.0)
        joint = joint * (1.0 - waits * jnp.exp(-drain * slack))
    return joint


def _picked(values: Float[Array, "r a p"], place: Float[Array, "p d"]) -> Float[Array, "r p #d"]:
    """Channels of values at places among many nodes of the second axis, which differ by pair."""
    _, axis, pools = values.shape
    if axis == 1:
        return values[:, 0, :, None]
    first = jnp.clip(jnp.floor(place).astype(int), 0, axis - 2)
    index, part = first * pools + jnp.arange(pools)[:, None], jnp.clip(place - first, 0.0, 1.0)

    def of_channel(channel):
        low, high = (jnp.take(channel, i, mode="clip") for i in (index, index + pools))
        return low + part * (high - low)

    return lax.map(of_channel, jnp.reshape(values, (-1, axis * pools)))


def _between(values: Float[Array, "r a ..."], place: Float[Array, "..."]) -> list[Array]:
    """Channels of values at places among the few nodes of the second axis."""
    last = values.shape[1] - 1
    weights = [jnp.maximum(1.0 - jnp.abs(place - i), 0.0) for i in range(last + 1)]
    return [
        functools.reduce(jnp.add, (w * values[r, i] for i, w in enumerate(weights)))
        for r in range(values.shape[0])
    ]
