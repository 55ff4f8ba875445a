"""Colocated and chunked deployments on a sampled trace, many at once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fluidserve._typing import Leaf
from fluidserve.errors import InputError
from fluidserve.sampled.engine import Policy, run
from fluidserve.sampled.latencies import Served, latencies
from fluidserve.sampled.state import WORD, Lane
from fluidserve.sampled.trace import Rows, Trace, rows_of
from fluidserve.timing.instance import AggregatedSystem

_LARGEST = 1 << 30


def policy_of(system: AggregatedSystem) -> Policy:
    """The scheduler of a deployment."""
    return "prompts-first" if system.token_budget is None else "chunked"


def check_aggregated(system: AggregatedSystem) -> None:
    """Refuses what the loop over iterations does not have.

    Raises:
      InputError: pipeline stages, several instances, windows or state in the KV, or preemption.
    """
    refused = {
        "pp": (np.any(np.asarray(system.instance.pp) != 1.0), "one pipeline stage"),
        "replicas": (np.any(np.asarray(system.replicas) != 1.0), "one instance"),
        "kv": (system.instance.kv is not None, "models whose layers all keep every token"),
        "kv_policy": (system.kv_policy != "reserve", "the policy 'reserve'"),
    }
    for name, (bad, known) in refused.items():
        if bad:
            raise InputError(f"sampled: {name}: only {known}; use the event simulator")


def places_for(trace: Trace) -> int:
    """Places of the ring that a trace needs."""
    return max(WORD, 1 << int(np.max(trace.n_out) - 1).bit_length())


def lanes_of(system: AggregatedSystem, rate: Leaf, longest: int) -> Lane:
    """The engines of a batch of deployments.

    Args:
      system: every leaf of the shape (lanes,).
      rate: of each instance, 1/s, (lanes,).
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
    system, rate = stacked(system, rate)
    return _serve(policy_of(system), places_for(trace), system, rate, rows_of(trace), trace.longest)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _serve(
    policy: Policy, places: int, system: AggregatedSystem, rate: jax.Array, rows: Rows, longest: int
) -> Served:
    served = serve_lanes(policy, places, lanes_of(system, rate, longest), rows)
    room = (system.instance.kv_capacity >= longest)[:, None]
    return Served(*(jnp.where(room, x, jnp.inf) for x in served))


def serve_lanes(policy: Policy, places: int, lanes: Lane, rows: Rows) -> Served:
    """Latencies of a trace on every lane; see `fluidserve.sampled.engine.run`."""
    log, _ = run(policy, places, lanes, rows)
    return jax.vmap(latencies, (0, None, 0))(lanes.rate, rows, log)
