"""Rates that saturate deployments, whatever the latencies: the throughput without any promise."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fluidserve.deploy.aggregated import largest_aggregated_rate
from fluidserve.deploy.disaggregated import largest_rate
from fluidserve.search import aggregated, score
from fluidserve.search.aggregated import AggregatedGrid, AggregatedPicks
from fluidserve.search.grid import Grid
from fluidserve.search.score import Picks, Question
from fluidserve.specs.deployment import KvPolicy
from fluidserve.status import Binding
from fluidserve.timing.instance import Instance

_STAGES = (Binding.PREFILL_CAPACITY, Binding.LINK, Binding.DECODE_CAPACITY)


@functools.singledispatch
def capacities(
    grid: Grid, question: Question
) -> tuple[Float[np.ndarray, "c"], Int[np.ndarray, "c"]]:
    """Largest rate that each candidate carries, 1/s, and what keeps it from more, a `Binding`.

    All slots are taken and all queues full: of the pools and the link between them the slowest
    counts; an instance that does both phases divides its time between them.

    Args:
      grid: candidates, not empty.
      question: what they share; its promise is not looked at.
    """
    every = np.arange(len(grid))
    arrays = score.program_arrays(grid, question, every, np.zeros(len(grid)))
    found = np.asarray(_of_pools(*arrays, len(grid)))[:, : len(grid)]
    return found.min(axis=0), np.array(_STAGES, int)[found.argmin(axis=0)]


@capacities.register(AggregatedGrid)
def _of_aggregated(grid: AggregatedGrid, question: Question) -> tuple[np.ndarray, np.ndarray]:
    every = np.arange(len(grid))
    arrays = aggregated.program_arrays(grid, question, every, np.zeros(len(grid)), room=len(grid))
    found = _of_instances(*arrays, len(grid), kv_policy=grid.kv_policy)
    return np.asarray(found)[: len(grid)], np.full(len(grid), int(Binding.CAPACITY))


@jax.jit
def _of_pools(question: Question, shapes: Instance, picks: Picks, count: Array) -> Array:
    """The three limits of disaggregated candidates, (3, c)."""
    return score.over_plans(
        lambda plan, _: jnp.stack(largest_rate(plan)), question, shapes, picks, count
    )


@functools.partial(jax.jit, static_argnames=("kv_policy",))
def _of_instances(
    question: Question,
    shapes: Instance,
    picks: AggregatedPicks,
    prefill_tokens: Array,
    count: Array,
    *,
    kv_policy: KvPolicy,
) -> Array:
    """The capacity of colocated and chunked candidates, (c,)."""
    return aggregated.over_plans(
        lambda plan, _: largest_aggregated_rate(plan),
        question,
        shapes,
        picks,
        prefill_tokens,
        count,
        kv_policy,
    )
