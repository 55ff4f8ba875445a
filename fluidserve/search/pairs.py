"""Attainment and goodput of pairs of pools out of their tables."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from fluidserve._typing import Leaf
from fluidserve.deploy.disaggregated import overflow_of
from fluidserve.goodput import root_rate
from fluidserve.search.tables import WAITS, Memory, Tables, read
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
    prefill, decode = read(tables.prefill, every, rate), read(tables.decode, every, rate)
    able = (rate < tables.prefill.end)[:, None] & (rate < tables.decode.end)
    memory = jax.tree.map(lambda x: x[:, None], tables.memory)
    joint = _joint(tables, memory, prefill[..., None], decode[..., None, :], rate)
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

    def attained(rate, _):
        f, g = read(tables.prefill, prefill, rate), read(tables.decode, decode, rate)
        return _joint(tables, memory, f, g, rate)

    upper = jnp.minimum(tables.prefill.end[prefill], tables.decode.end[decode])
    found, _ = root_rate(attained, lambda share: share, tables.question.slo.attainment, upper)
    return found


def _joint(
    tables: Tables,
    memory: Memory,
    prefill: Float[Array, "a r ..."],
    decode: Float[Array, "b s ..."],
    rate: Leaf,
) -> Float[Array, "..."]:
    """Joint attainment out of the values of two pools; shapes broadcast."""
    question, link = tables.question, tables.link
    rate = jnp.broadcast_to(rate, memory.mean.shape)
    load = rate * memory.mean / memory.count
    g = _between(decode, WAITS, unevenness(load, memory.count))
    waits, drain, step, found = g[-4:]
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
    f = prefill[0]
    if question.first_token == "decode":
        steps = jnp.log(tables.first_steps)
        f = _between(prefill, steps, jnp.log(jnp.maximum(after, tables.first_steps[0])))
    joint = functools.reduce(jnp.add, (f[r] * g[r] for r in range(tables.terms)))
    joint = joint * (1.0 - overflow)
    if question.first_token == "decode":
        slack = jnp.maximum(question.slo.ttft - f[-1] - handover - after, 0.0)
        joint = joint * (1.0 - waits * jnp.exp(-drain * slack))
    return joint


def _between(values, nodes, at) -> list[Array]:
    """Channels of values at a place between equally spaced nodes of the first axis."""
    last = values.shape[0] - 1
    scaled = jnp.clip((at - nodes[0]) / (nodes[-1] - nodes[0]), 0.0, 1.0) * last
    weights = [jnp.maximum(1.0 - jnp.abs(scaled - i), 0.0) for i in range(last + 1)]
    return [
        functools.reduce(jnp.add, (w * values[i, r] for i, w in enumerate(weights)))
        for r in range(values.shape[1])
    ]
