"""Full numbers of a handful of candidates at given rates, in one jitted call."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fluidserve._pytree import pytree
from fluidserve.deploy.disaggregated import Metrics, at_rate, evaluate
from fluidserve.deploy.latency import Latencies, latencies
from fluidserve.search.grid import Grid
from fluidserve.search.score import (
    Picks,
    Question,
    as_arrays,
    candidates,
    replica_bound,
)
from fluidserve.stages.decode import decode_lengths
from fluidserve.stages.prefill import prefill_shape
from fluidserve.timing.instance import Instance

_ROOM = 64


@pytree
class Descriptions:
    """Candidates at their rates: metrics, and latencies with quantile levels first."""

    metrics: Metrics
    latencies: Latencies


@functools.partial(jax.jit, static_argnames=("max_replicas",))
def describe(
    question: Question, shapes: Instance, picks: Picks, rates: jax.Array, *, max_replicas: int
) -> Descriptions:
    """Evaluates candidates at their rates, 1/s."""
    prefill = prefill_shape(shapes, question.bins)
    lengths = decode_lengths(question.bins, question.first_token)
    plan = candidates(question, shapes, prefill, lengths, picks)
    state = at_rate(plan, rates, max_replicas=max_replicas)
    return Descriptions(
        metrics=evaluate(plan, question.slo, rates, max_replicas=max_replicas),
        latencies=latencies(plan, state),
    )


def describe_rows(
    grid: Grid, question: Question, rows: np.ndarray, rates: np.ndarray
) -> Descriptions:
    """Describes the candidates `rows` of a grid at `rates`, 1/s; NumPy arrays of their number."""
    count = len(rows)
    room = -(-count // _ROOM) * _ROOM

    def padded(values: np.ndarray, dtype: type) -> np.ndarray:
        return np.concatenate([values, np.repeat(values[-1:], room - count)]).astype(dtype)

    picks = Picks(
        prefill=padded(grid.prefill[rows], np.int32),
        decode=padded(grid.decode[rows], np.int32),
        n_prefill=padded(grid.n_prefill[rows], float),
        n_decode=padded(grid.n_decode[rows], float),
    )
    arrays = as_arrays((question, grid.stacked(), picks, padded(rates, float)))
    found = describe(*arrays, max_replicas=replica_bound(grid))
    return jax.tree.map(lambda x: np.asarray(jnp.asarray(x))[..., :count], found)
