"""Colocated and chunked deployments on a sampled trace, many at once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fluidserve._typing import Leaf
from fluidserve.errors import InputError
from fluidserve.sampled.engine import Policy, run
from fluidserve.sampled.latencies import Served, latencies, pool_latencies
from fluidserve.sampled.pool import Sent, run_pool
from fluidserve.sampled.state import WORD, Clock, Lane
from fluidserve.sampled.trace import Rows, Trace, rows_of
from fluidserve.timing.instance import AggregatedSystem

_LARGEST = 1 << 30
MOST_ENGINES = 16
"""Most instances of a deployment; their state is laid out for a power of two of them."""


def policy_of(system: AggregatedSystem) -> Policy:
    """The scheduler of a deployment."""
    return "prompts-first" if system.token_budget is None else "chunked"


def check_aggregated(system: AggregatedSystem) -> None:
    """Refuses what the loop over iterations does not have.

    Raises:
      InputError: pipeline stages, more than `MOST_ENGINES` instances, windows or state in the KV,
        or preemption.
    """
    refused = {
        "pp": (np.any(np.asarray(system.instance.pp) != 1.0), "one pipeline stage"),
        "replicas": (
            np.any(np.asarray(system.replicas) > MOST_ENGINES),
            f"up to {MOST_ENGINES} instances",
        ),
        "kv": (system.instance.kv is not None, "models whose layers all keep every token"),
        "kv_policy": (system.kv_policy != "reserve", "the policy 'reserve'"),
    }
    for name, (bad, known) in refused.items():
        if bad:
            raise InputError(f"sampled: {name}: only {known}; use the event simulator")


def engines_for(system: AggregatedSystem) -> int:
    """Engines that a program has for each deployment: a power of two."""
    return 1 << (int(np.max(system.replicas)) - 1).bit_length()


def places_for(trace: Trace) -> int:
    """Places of the ring that a trace needs."""
    return max(WORD, 1 << int(np.max(trace.n_out) - 1).bit_length())


def lanes_of(system: AggregatedSystem, rate: Leaf, longest: int) -> Lane:
    """The engines of a batch of deployments.

    Args:
      system: every leaf of the shape (lanes,).
      rate: of each deployment, 1/s, (lanes,).
      longest: most tokens of a request; an engine without room for them is given it, and its
        latencies mean nothing.
    """
    tokens = system.prefill_tokens if system.token_budget is None else system.token_budget
    capacity = jnp.clip(jnp.floor(system.instance.kv_capacity), longest, _LARGEST)
    hit = system.prefix_hit
    return Lane(
        times=system.instance.times,
        rate=rate,
        tokens=jnp.asarray(tokens),
        max_batch=jnp.clip(system.max_batch, 1, _LARGEST).astype(jnp.int32),
        capacity=capacity.astype(jnp.int32),
        prefix_hit=hit,
    )


def stacked(system: AggregatedSystem, rate: Leaf) -> tuple[AggregatedSystem, jax.Array]:
    """All leaves and the rates as arrays of one shape (lanes,)."""
    leaves, shape = jax.tree.leaves((system, rate)), (1,)
    for leaf in leaves:
        shape = np.broadcast_shapes(shape, np.shape(leaf))
    return jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x, float), shape), (system, rate))


def serve(system: AggregatedSystem, rate: Leaf, trace: Trace) -> Served:
    """Serves a trace on every deployment at its rate.

    Args:
      system: one deployment, or a batch with leaves of shape (lanes,).
      rate: arrival rate, 1/s; a number or (lanes,).
      trace: the requests.

    Returns:
      latencies, (lanes, requests); ``inf`` where an instance has no room for the longest request.

    Raises:
      InputError: see `check_aggregated`.
    """
    check_aggregated(system)
    engines = engines_for(system)
    system, rate = stacked(system, rate)
    program = (policy_of(system), places_for(trace), engines)
    return _serve(program, system, rate, rows_of(trace), trace.longest)


Program = tuple[Policy, int, int]
"""What is compiled in: the policy, the places of the ring, and the engines of a deployment."""


@functools.partial(jax.jit, static_argnums=0)
def _serve(
    program: Program, system: AggregatedSystem, rate: jax.Array, rows: Rows, longest: int
) -> Served:
    served = serve_lanes(program, system, rate, rows, longest)
    room = (system.instance.kv_capacity >= longest)[:, None]
    return Served(*(jnp.where(room, x, jnp.inf) for x in served))


def serve_lanes(
    program: Program, system: AggregatedSystem, rate: jax.Array, rows: Rows, longest: int
) -> Served:
    """Latencies of a trace on every deployment, (lanes, requests).

    Args:
      program: what is compiled in.
      system: leaves of shape (lanes,).
      rate: of each deployment, 1/s, (lanes,).
      rows: the trace.
      longest: most tokens of a request.
    """
    policy, places, engines = program
    lanes = lanes_of(system, rate, longest)
    if engines == 1:
        log, _ = run(policy, places, lanes, rows)
        return jax.vmap(latencies, (0, None, 0))(rate, rows, log)
    replicas = system.replicas.astype(jnp.int32)
    at, requests = Clock(rows.whole, rows.part), jnp.arange(rows.n_in.shape[0] - 1)
    to = None
    if system.dispatch == "round-robin":
        to = (requests % replicas[:, None]).astype(jnp.int32)
    elif system.dispatch == "random":
        to = jnp.floor(rows.choice[:-1] * replicas[:, None]).astype(jnp.int32)
    log, _ = run_pool(policy, places, engines, lanes, replicas, rows, Sent(at, to))
    return jax.vmap(pool_latencies, (0, None, 0))(rate, rows, log)
