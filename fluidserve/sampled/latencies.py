"""Latencies of every request out of the log of a run."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fluidserve._typing import Number
from fluidserve.sampled.pool import PoolLog
from fluidserve.sampled.state import NEVER, Clock, Log
from fluidserve.sampled.trace import Rows


class Served(NamedTuple):
    """The requests of a trace on every lane, (lanes, requests).

    Attributes:
      ttft: time to first token, s.
      tpot: mean time per output token after the first, s; 0 where there is one token.
      e2e: time to the last token, s.
    """

    ttft: jax.Array
    tpot: jax.Array
    e2e: jax.Array


def latencies(rate: Number, rows: Rows, log: Log) -> Served:
    """Reads the log of one lane.

    The requests of an iteration have their first tokens at its end: its entry is the first one at
    or behind their own place. A request leaves ``n_out - 1`` iterations later, which is an entry
    of `Log.last_iteration`. A request that was never served takes for ever.

    Args:
      rate: of the lane, 1/s.
      rows: the trace.
      log: of the lane.
    """
    requests = rows.n_in.shape[0] - 1
    entry = jnp.where(log.first_iteration < NEVER, jnp.arange(requests + 1), requests)
    entry = lax.cummin(entry, reverse=True)[:-1]
    arrival = Clock(rows.whole[:-1], rows.part[:-1])
    of_entry = Clock(rows.whole[entry], rows.part[entry])
    lag = log.first_lag[entry]
    ttft = lag + of_entry.since(arrival)
    iteration = log.first_iteration[entry] + rows.n_out[:-1] - 1
    last = jnp.searchsorted(log.last_iteration, iteration, method="scan_unrolled")
    last = jnp.minimum(last, requests)
    end = Clock(log.last.whole[last], log.last.part[last])
    gaps = rows.n_out[:-1] - 1
    tpot = (end.since(of_entry) - lag) / jnp.maximum(gaps, 1).astype(lag.dtype)
    started = entry < requests
    ended = started & ((gaps == 0) | (log.last_iteration[last] < NEVER))
    return Served(
        ttft=jnp.where(started, ttft / rate, jnp.inf),
        tpot=jnp.where(ended, jnp.where(gaps > 0, tpot, 0.0) / rate, jnp.inf),
        e2e=jnp.where(ended, jnp.where(gaps > 0, end.since(arrival), ttft) / rate, jnp.inf),
    )


def pool_latencies(rate: Number, rows: Rows, log: PoolLog) -> Served:
    """Reads the log of one deployment of several engines.

    Args:
      rate: of the deployment, 1/s.
      rows: the trace.
      log: of its engines.
    """
    of_queues = jax.tree.map(lambda x: x[log.queue], rows)
    served = jax.vmap(latencies, (None, 0, 0))(rate, of_queues, log.engines)
    return Served(*(x[log.engine[:-1], log.place[:-1]] for x in served))
