"""Colocated and chunked deployments on a sampled trace."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fluidserve._typing import Leaf
from fluidserve.errors import InputError
from fluidserve.sampled.engine import run
from fluidserve.sampled.latencies import Served, latencies, pool_latencies
from fluidserve.sampled.pool import run_pool
from fluidserve.sampled.state import Lane
from fluidserve.sampled.step import Policy
from fluidserve.sampled.trace import Rows
from fluidserve.timing.instance import AggregatedSystem

MOST_ENGINES = 16
"""Most instances of a deployment; their state is laid out for a power of two of them."""

LARGEST = 1 << 30
"""Stands for no limit where whole numbers are wanted."""


def refuse(part: str, bad: Leaf, known: str) -> None:
    """Says what of a deployment the loop over iterations does not have.

    Raises:
      InputError: where something of it is bad.
    """
    if np.any(np.asarray(bad)):
        raise InputError(f"sampled: {part}: only {known}; use the event simulator")


def check_aggregated(system: AggregatedSystem) -> None:
    """Refuses pipeline stages, many instances, windows or state in the KV, and preemption."""
    refuse("pp", np.asarray(system.instance.pp) != 1.0, "one pipeline stage")
    many = np.asarray(system.replicas) > MOST_ENGINES
    refuse("replicas", many, f"up to {MOST_ENGINES} instances")
    refuse("kv", system.instance.kv is not None, "models whose layers all keep every token")
    refuse("kv_policy", system.kv_policy != "reserve", "the policy 'reserve'")


def power_of_two(count: Leaf) -> int:
    """The least one that no count exceeds."""
    return 1 << (int(np.max(np.asarray(count))) - 1).bit_length()


@dataclasses.dataclass(frozen=True)
class AggregatedProgram:
    """What is compiled in.

    Attributes:
      policy: of the engines.
      places: of their rings.
      engines: most of a deployment.
      gaps: whether times between tokens are counted.
    """

    policy: Policy
    places: int
    engines: int
    gaps: bool

    def serve(
        self, system: AggregatedSystem, rate: jax.Array, rows: Rows, longest: Leaf
    ) -> tuple[Served, jax.Array | None]:
        """Latencies of a trace on every deployment, (lanes, requests), and tokens by their gap.

        Args:
          system: leaves of shape (lanes,).
          rate: of each deployment, 1/s, (lanes,).
          rows: the trace.
          longest: most tokens of a request; where they do not fit, latencies mean nothing.
        """
        chunked = system.token_budget is not None
        lanes = Lane(
            times=system.instance.times,
            rate=rate,
            tokens=system.token_budget if chunked else system.prefill_tokens,
            max_batch=whole(system.max_batch),
            capacity=whole(system.instance.kv_capacity, longest),
            prefix_hit=system.prefix_hit,
        )
        if self.engines == 1:
            log, gaps = run(self.policy, self.places, self.gaps, lanes, rows)
            return jax.vmap(latencies, (0, None, 0))(rate, rows, log), gaps
        replicas = system.replicas.astype(jnp.int32)
        order = jnp.arange(rows.n_in.shape[0] - 1)
        to = None
        if system.dispatch == "round-robin":
            to = order % replicas[:, None]
        elif system.dispatch == "random":
            to = jnp.floor(rows.choice[:-1] * replicas[:, None]).astype(jnp.int32)
        log, gaps = run_pool(
            self.policy, self.places, self.gaps, self.engines, lanes, replicas, rows, to
        )
        return jax.vmap(pool_latencies, (0, None, 0))(rate, rows, log), gaps


def aggregated_program(system: AggregatedSystem, places: int, *, gaps: bool) -> AggregatedProgram:
    """The program for a batch of deployments.

    Raises:
      InputError: see `check_aggregated`.
    """
    check_aggregated(system)
    policy: Policy = "prompts-first" if system.token_budget is None else "chunked"
    return AggregatedProgram(policy, places, power_of_two(system.replicas), gaps)


def whole(limit: Leaf, least: Leaf = 1) -> jax.Array:
    """A limit as a whole number."""
    return jnp.clip(jnp.floor(limit), least, LARGEST).astype(jnp.int32)
