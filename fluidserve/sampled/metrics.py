"""Metrics of many deployments at given rates on sampled traces."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fluidserve._typing import Leaf
from fluidserve.sampled.gaps import gap_quantiles
from fluidserve.sampled.margin import attainments
from fluidserve.sampled.serve import Program, has_room, program_for, stacked
from fluidserve.sampled.trace import Rows, Trace, judged, rows_of
from fluidserve.specs.slo import Slo
from fluidserve.timing.instance import AggregatedSystem, System

LEVELS = (0.5, 0.9, 0.99)
"""Shares of the requests, or of the tokens, at which quantiles are given."""


@dataclasses.dataclass(frozen=True)
class SampledMetrics:
    """Each candidate at its rate, mean over the traces; times in s.

    Quantiles are at `LEVELS`, (levels, candidates).

    Attributes:
      attainment: share of the requests that meets the joint limits, (candidates,).
      error: standard error of that by the spread between the traces; ``inf`` from one trace.
      attainments: share that meets each limit, TTFT, TPOT and end to end, (3, candidates).
      ttft: of the requests.
      tpot: of the requests with two and more output tokens; ``nan`` where there are none.
      e2e: of the requests.
      itl: times between tokens, over all tokens behind the first ones.
    """

    attainment: np.ndarray
    error: np.ndarray
    attainments: np.ndarray
    ttft: np.ndarray
    tpot: np.ndarray
    e2e: np.ndarray
    itl: np.ndarray


def measure(
    system: System | AggregatedSystem, rate: Leaf, slo: Slo, traces: Sequence[Trace]
) -> SampledMetrics:
    """Serves traces on every deployment at its rate; a batch is one block, so keep it small.

    Where requests join decode, times between tokens are those of single iterations; within a spell
    of iterations of one batch its mean counts. Where prompts go first, requests that join during
    one stall count with their mean wait.

    Args:
      system: one deployment, or a batch with leaves of shape (candidates,).
      rate: arrival rate, 1/s; a number or (candidates,).
      slo: the promise.
      traces: requests, all of one length.

    Returns:
      the metrics; without room for the longest request, attainments of 0 and times of ``inf``.

    Raises:
      InputError: see `fluidserve.sampled.serve.program_for`.
    """
    program = program_for(system, traces, gaps=True)
    leaves = stacked((system, rate, slo), jnp)
    longest = max(trace.longest for trace in traces)
    parts = [_measured(program, *leaves, rows_of(trace), longest) for trace in traces]
    joint, *rest = (np.mean([np.asarray(part[i]) for part in parts], axis=0) for i in range(6))
    error = np.full(joint.shape, np.inf)
    if len(traces) > 1:
        spread = np.std([np.asarray(part[0]) for part in parts], axis=0, ddof=1)
        error = spread / np.sqrt(len(traces))
    return SampledMetrics(joint, error, *rest)


@functools.partial(jax.jit, static_argnums=0)
def _measured(
    program: Program,
    system: System | AggregatedSystem,
    rate: jax.Array,
    slo: Slo,
    rows: Rows,
    longest: Leaf,
) -> tuple[jax.Array, ...]:
    """Attainments, and quantiles of the four latencies, on one trace."""
    served, gaps = program.serve(system, rate, rows, longest)
    assert gaps is not None
    n_out = rows.n_out[:-1]
    room, window = has_room(system, longest), judged(n_out.shape[0])
    joint, each = attainments(slo, served, n_out)
    levels = jnp.asarray(LEVELS)
    tpot = jnp.where(n_out > 1, served.tpot, jnp.nan)
    times = (
        jnp.quantile(served.ttft[:, window], levels, axis=1),
        jnp.nanquantile(tpot[:, window], levels, axis=1),
        jnp.quantile(served.e2e[:, window], levels, axis=1),
        jax.vmap(lambda tokens: gap_quantiles(tokens, LEVELS), out_axes=1)(gaps),
    )
    shares = (jnp.where(room, joint, 0.0), jnp.where(room, each, 0.0))
    return (*shares, *(jnp.where(room, x, jnp.inf) for x in times))
