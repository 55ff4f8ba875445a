"""Prefill instances and the link behind them, request by request.

Neither looks ahead, so both are recursions over the requests: of the times at which stages become
free (Lindley 1952; in tandem, as a batch of one passes a stage when both are free), and of the time
at which the link does. Times are kept as lags behind the request at hand, so that float32 holds
them however long the trace.
"""

import jax
import jax.numpy as jnp
from jax import lax

from fluidserve._typing import Number
from fluidserve.sampled.state import Clock

_NOT_THERE = 1e9


def prefill_lags(
    arrival: Clock,
    busy: jax.Array,
    to: jax.Array | None,
    *,
    instances: Number,
    stages: Number,
    most_instances: int,
    most_stages: int,
) -> jax.Array:
    """When prompts leave the last stage, after their arrival.

    A prompt starts on the instance whose first stage has been free for longest, or becomes so
    first; then the lowest index. Every stage takes the same time for a prompt.

    Args:
      arrival: of every request, in order, (requests,).
      busy: time of each on one stage, (requests,).
      to: the instance of each where every instance has its own queue, (requests,); None: one queue.
      instances: how many there are.
      stages: of each.
      most_instances: that the program has room for.
      most_stages: the same.
    """
    real = jnp.arange(most_instances) < instances
    start = jnp.where(real[:, None], -1.0, _NOT_THERE) * jnp.ones((1, most_stages), busy.dtype)
    before = Clock(*(jnp.concatenate([x[:1], x[:-1]]) for x in arrival))
    gaps = arrival.since(before)
    chosen = jnp.zeros(busy.shape, jnp.int32) if to is None else to

    def serve(free: jax.Array, row: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        gap, time, own = row
        free = jnp.where(real[:, None], free - gap, free)
        i = jnp.argmin(free[:, 0]) if to is None else own
        end, marks = jnp.zeros_like(time), []
        for s in range(most_stages):
            passed = jnp.maximum(end, free[i, s]) + time
            end = jnp.where(s < stages, passed, end)
            marks.append(jnp.where(s < stages, passed, free[i, s]))
        here = (jnp.arange(most_instances) == i)[:, None]
        return jnp.where(here, jnp.stack(marks), free), end

    return lax.scan(serve, start, (gaps, busy, chosen))[1]


def link_lags(sent: Clock, busy: jax.Array) -> jax.Array:
    """When transfers are over that one link serves in turn, after they are sent.

    Args:
      sent: when each is, in order, (requests,).
      busy: time of each on the link, (requests,).
    """
    before = Clock(*(jnp.concatenate([x[:1], x[:-1]]) for x in sent))

    def pull(free: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        gap, time = row
        free = jnp.maximum(free - gap, 0.0) + time
        return free, free

    return lax.scan(pull, jnp.zeros_like(busy[0]), (sent.since(before), busy))[1]
