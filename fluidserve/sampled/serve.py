"""Deployments of any kind on a sampled trace, many at once."""

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fluidserve._typing import Leaf
from fluidserve.errors import InputError
from fluidserve.sampled.aggregated import aggregated_program
from fluidserve.sampled.disaggregated import disaggregated_program
from fluidserve.sampled.latencies import Served
from fluidserve.sampled.state import WORD
from fluidserve.sampled.trace import Rows, Trace, rows_of
from fluidserve.timing.instance import AggregatedSystem, System


class Program(Protocol):
    """What is compiled in for a batch of deployments: one class for each kind of system."""

    @property
    def engines(self) -> int:
        """Most engines of a deployment."""
        ...

    def serve(
        self, system: Any, rate: jax.Array, rows: Rows, longest: Leaf
    ) -> tuple[Served, jax.Array | None]:
        """Latencies of a trace on every deployment, (lanes, requests), and tokens by their gap."""
        ...


def program_for(
    system: System | AggregatedSystem, traces: Sequence[Trace], *, gaps: bool = False
) -> Program:
    """The program that serves a batch of deployments on any of some traces.

    Args:
      system: the deployments.
      traces: the requests.
      gaps: whether times between tokens are wanted.

    Raises:
      InputError: a deployment that it does not have, or traces of different lengths, or, for
        first tokens from prefill, with different numbers of single tokens.
    """
    shapes = {(len(trace), int(np.sum(trace.n_out > 1))) for trace in traces}
    if len(shapes) > 1:
        raise InputError("traces: they must agree in the numbers of requests and single tokens")
    most = max(int(np.max(trace.n_out)) for trace in traces)
    places = max(WORD, 1 << (most - 1).bit_length())
    if isinstance(system, AggregatedSystem):
        return aggregated_program(system, places, gaps=gaps)
    return disaggregated_program(system, traces[0], places, gaps=gaps)


def has_room(system: System | AggregatedSystem, longest: Leaf) -> Leaf:
    """Whether instances have room for the longest request."""
    if isinstance(system, AggregatedSystem):
        return system.instance.kv_capacity >= longest
    return (system.decode.kv_capacity >= longest) & (system.prefill.kv_capacity >= longest)


def stacked(tree: Any, library: ModuleType = np) -> Any:
    """A pytree whose leaves are arrays, of NumPy or JAX, of one shape (candidates,)."""
    shape = np.broadcast_shapes((1,), *(np.shape(x) for x in jax.tree.leaves(tree)))
    return jax.tree.map(lambda x: library.broadcast_to(library.asarray(x, float), shape), tree)


def serve(system: System | AggregatedSystem, rate: Leaf, trace: Trace) -> Served:
    """Serves a trace on every deployment at its rate.

    Args:
      system: one deployment, or a batch with leaves of shape (lanes,).
      rate: arrival rate, 1/s; a number or (lanes,).
      trace: the requests.

    Returns:
      latencies, (lanes, requests); ``inf`` where an instance has no room for the longest request.

    Raises:
      InputError: see `program_for`.
    """
    program = program_for(system, [trace])
    system, rate = stacked((system, rate), jnp)
    return _serve(program, system, rate, rows_of(trace), trace.longest)


@functools.partial(jax.jit, static_argnums=0)
def _serve(
    program: Program,
    system: System | AggregatedSystem,
    rate: jax.Array,
    rows: Rows,
    longest: Leaf,
) -> Served:
    served, _ = program.serve(system, rate, rows, longest)
    room = has_room(system, longest)[:, None]
    return Served(*(jnp.where(room, x, jnp.inf) for x in served))
