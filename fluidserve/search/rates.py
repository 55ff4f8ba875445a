"""Attainment and what binds at rates that are given: a score without a search.

Where all prefill instances have a single stage (pp 1), nothing is held up behind a longer prompt.
A program without what runs ahead in a pipeline scores them, with the same numbers. A grid with any
other prefill shape is scored whole by the program that has it.
"""

import concurrent.futures
import functools
import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fluidserve._typing import Leaf
from fluidserve.deploy.binding import binding_of
from fluidserve.deploy.disaggregated import at_rate, largest_rate, metrics_of
from fluidserve.errors import InputError
from fluidserve.search.grid import Grid
from fluidserve.search.score import (
    Picks,
    Question,
    as_arrays,
    candidates,
    picks_of,
    replica_bound,
)
from fluidserve.stages.decode import decode_lengths
from fluidserve.stages.prefill import prefill_shape
from fluidserve.timing.instance import Instance

CHUNK = 4096
_PART = 4 * CHUNK


class RateScores(NamedTuple):
    """What is known of each candidate at its rate.

    Attributes:
      attainment: share of the requests that meet the limits together; 0 where a stage cannot carry
        the rate.
      binding: the `Binding`: what saturates, or what more requests miss.
    """

    attainment: np.ndarray
    binding: np.ndarray


def attain_grid(grid: Grid, question: Question, rates: np.ndarray) -> RateScores:
    """Scores the candidates of a grid at rates, in steady state.

    Args:
      grid: the candidates.
      question: what they share.
      rates: of each candidate, 1/s, above 0.

    Raises:
      InputError: a horizon or a closed loop.
    """
    if question.horizon is not None or question.users is not None:
        raise InputError("rates: given rates are scored in steady state and an open loop alone")
    count = len(grid)
    room = -(-count // _PART) * _PART
    picks = picks_of(grid, np.arange(count), rates, room)
    question, shapes = as_arrays((question, grid.stacked()))
    pipelines = any(grid.shapes[i].pp > 1 for i in np.unique(grid.prefill))
    prepared = _prepare(question, shapes, pipelines=pipelines)
    most = replica_bound(grid)

    wide = jnp.result_type(float) == np.float64

    def part(start: int) -> tuple[np.ndarray, np.ndarray]:
        with jax.enable_x64(wide):  # a thread begins with the precision of the process
            here = as_arrays(jax.tree.map(lambda x: x[start : start + _PART], picks))
            found = _attain(question, shapes, prepared, here, max_replicas=most)
            return np.asarray(found[0]), np.asarray(found[1])

    # a chunk is too small for XLA to split, so that each core takes parts of its own
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as cores:
        parts = list(cores.map(part, range(0, room, _PART)))
    attainment, binding = (np.concatenate(x)[:count] for x in zip(*parts, strict=True))
    return RateScores(attainment, binding)


@functools.partial(jax.jit, static_argnames="pipelines")
def _prepare(question: Question, shapes: Instance, *, pipelines: bool):
    """What the rate does not change: the prefill shapes and the moments in decode."""
    prefill = prefill_shape(
        shapes,
        question.bins,
        question.prefix_hit,
        batch=question.prefill_batch,
        tokens=question.prefill_tokens,
        pipelines=pipelines,
    )
    return prefill, decode_lengths(question.bins, question.first_token, shapes.kv)


@functools.partial(jax.jit, static_argnames="max_replicas")
def _attain(
    question: Question, shapes: Instance, prepared: Leaf, picks: Picks, *, max_replicas: int
):
    """Attainment and what binds, chunk by chunk."""
    prefill, lengths = prepared

    def one_chunk(here: Picks):
        plan = candidates(question, shapes, prefill, lengths, here)
        state = at_rate(plan, here.rate, max_replicas=max_replicas)
        metrics = metrics_of(plan, question.slo, here.rate, state)
        limits = largest_rate(plan)
        binding = binding_of(here.rate, metrics, limits, plan, question.slo)
        return metrics.attainment, binding

    split = jax.tree.map(lambda x: jnp.reshape(x, (-1, CHUNK)), picks)
    return jax.tree.map(jnp.ravel, lax.map(one_chunk, split))
