"""The jitted entry of the search: goodput, metrics, limits and doubts of a whole grid in one call.

The grid is scored in chunks of a fixed size inside one compiled loop, so that a question of any
size uses the same program and the memory stays small.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fluidserve._pytree import pytree, static
from fluidserve._typing import Leaf
from fluidserve.deploy.confidence import NUDGE, doubts_of
from fluidserve.deploy.disaggregated import (
    Metrics,
    Plan,
    binding_of,
    evaluate,
    largest_rate,
)
from fluidserve.goodput import bisect_rate
from fluidserve.problem import Problem
from fluidserve.search.grid import Grid
from fluidserve.specs.lengths import LengthBins
from fluidserve.specs.slo import Slo
from fluidserve.stages.decode import DecodeLengths, decode_lengths
from fluidserve.stages.prefill import PrefillShape, prefill_shape
from fluidserve.timing.instance import Instance, System
from fluidserve.timing.profile import FirstToken

CHUNK = 2048
_SMALLEST_ROOM = 2 * CHUNK


@pytree
class Question:
    """What all candidates of a grid share.

    Attributes:
      bins: the lengths.
      slo: the promise.
      arrival_scv: squared coefficient of variation between arrivals.
      dispersion: variance over mean of the arrivals per minute.
      kv_bytes_per_token: bytes to hand over per prompt token.
      link_bandwidth: of the link between the pools, B/s; may be ``inf``.
      handover_overhead: fixed time of one transfer, s.
      max_batch: batch cap of a decode instance.
      first_token: where the first token leaves.
      prefill_batch: most prompts that a prefill instance computes together.
    """

    bins: LengthBins
    slo: Slo
    arrival_scv: Leaf
    dispersion: Leaf
    kv_bytes_per_token: Leaf
    link_bandwidth: Leaf
    handover_overhead: Leaf
    max_batch: Leaf
    first_token: FirstToken = static()
    prefill_batch: int = static(default=1)


def question_of(problem: Problem) -> Question:
    """What the candidates of a problem share."""
    engine = problem.engine
    return Question(
        bins=problem.bins,
        slo=problem.slo,
        arrival_scv=problem.workload.arrival_scv,
        dispersion=problem.workload.dispersion,
        kv_bytes_per_token=problem.model.kv_bytes_per_token,
        link_bandwidth=engine.link_bandwidth,
        handover_overhead=engine.profile.handover_overhead,
        max_batch=float(engine.max_batch),
        first_token=engine.first_token,
        prefill_batch=engine.prefill_batch,
    )


@pytree
class Scores:
    """What is known of each candidate; arrays of the grid's length.

    Attributes:
      goodput: largest rate at which the SLO is met, 1/s; 0 when none.
      metrics: the deployment at that rate, or at a vanishing rate when goodput is 0.
      binding: a `Binding`.
      doubts: bits of `Doubt`.
    """

    goodput: Leaf
    metrics: Metrics
    binding: Leaf
    doubts: Leaf


@pytree
class Picks:
    """Which candidate is what: indices into the shapes, and instance counts."""

    prefill: Leaf
    decode: Leaf
    n_prefill: Leaf
    n_decode: Leaf


def candidates(
    question: Question,
    shapes: Instance,
    prefill: PrefillShape,
    lengths: DecodeLengths,
    picks: Picks,
) -> Plan:
    """Gathers the shapes of some candidates into one batch."""

    def at(index):
        return lambda leaf: leaf[..., index]

    system = System(
        prefill=jax.tree.map(at(picks.prefill), shapes),
        decode=jax.tree.map(at(picks.decode), shapes),
        n_prefill=picks.n_prefill,
        n_decode=picks.n_decode,
        kv_bytes_per_token=question.kv_bytes_per_token,
        link_bandwidth=question.link_bandwidth,
        handover_overhead=question.handover_overhead,
        max_batch=question.max_batch,
        prefill_batch=question.prefill_batch,
        first_token=question.first_token,
    )
    return Plan(
        system=system,
        prefill=jax.tree.map(at(picks.prefill), prefill),
        lengths=lengths,
        bins=question.bins,
        arrival_scv=question.arrival_scv,
        dispersion=question.dispersion,
    )


def score_plan(plan: Plan, slo: Slo, *, max_replicas: int) -> Scores:
    """Goodput of a batch of candidates, and what is known of them there."""

    def at(rate, on_limits):
        limits = dataclasses.replace(slo, ttft=slo.ttft * on_limits, tpot=slo.tpot * on_limits)
        return evaluate(plan, limits, rate, max_replicas=max_replicas)

    limits = largest_rate(plan)
    upper = functools.reduce(jnp.minimum, limits)
    goodput, (metrics, slower, tighter) = bisect_rate(
        at,
        lambda m: m.attainment,
        slo.attainment,
        upper,
        then=((1.0, 1.0), (1.0 - NUDGE, 1.0), (1.0, 1.0 - NUDGE)),
    )
    return Scores(
        goodput=goodput,
        metrics=metrics,
        binding=binding_of(goodput, metrics, limits),
        doubts=doubts_of(plan, slo, metrics, slower, tighter),
    )


@functools.partial(jax.jit, static_argnames=("max_replicas",))
def score(
    question: Question, shapes: Instance, picks: Picks, count: Leaf, *, max_replicas: int
) -> Scores:
    """Scores the first `count` candidates; the rest of the arrays is room.

    Args:
      question: what the candidates share.
      shapes: instance shapes, arrays of `MAX_SHAPES`.
      picks: index arrays, a multiple of `CHUNK` long.
      count: candidates.
      max_replicas: largest instance count the compiled program holds.
    """
    prefill = prefill_shape(shapes, question.bins)
    lengths = decode_lengths(question.bins, question.first_token)

    def one_chunk(start):
        here = jax.tree.map(lambda x: lax.dynamic_slice(x, (start,), (CHUNK,)), picks)
        plan = candidates(question, shapes, prefill, lengths, here)
        return score_plan(plan, question.slo, max_replicas=max_replicas)

    room = picks.prefill.shape
    shape_of_chunk = jax.eval_shape(one_chunk, 0)
    empty = jax.tree.map(lambda x: jnp.zeros(room, x.dtype), shape_of_chunk)

    def body(i, scores):
        start = i * CHUNK
        return jax.tree.map(
            lambda all_, part: lax.dynamic_update_slice(all_, part, (start,)),
            scores,
            one_chunk(start),
        )

    return lax.fori_loop(0, (count + CHUNK - 1) // CHUNK, body, empty)


def score_grid(grid: Grid, question: Question) -> Scores:
    """Scores a grid in one call and returns NumPy arrays of its length.

    The arrays are padded to a power of four chunks and the counts rounded up to a power of two, so
    that few programs are ever compiled.
    """
    count = len(grid)
    room = _SMALLEST_ROOM
    while room < count:
        room *= 4

    def padded(values: np.ndarray, dtype: type) -> np.ndarray:
        return np.concatenate([values, np.repeat(values[-1:], room - count)]).astype(dtype)

    picks = Picks(
        prefill=padded(grid.prefill, np.int32),
        decode=padded(grid.decode, np.int32),
        n_prefill=padded(grid.n_prefill, float),
        n_decode=padded(grid.n_decode, float),
    )
    arrays = as_arrays((question, grid.stacked(), picks))
    scores = score(*arrays, count, max_replicas=replica_bound(grid))
    return jax.tree.map(lambda x: np.asarray(x)[:count], scores)


def replica_bound(grid: Grid) -> int:
    """A power of two that no instance count of the grid exceeds, at least 64."""
    most = max(64, int(grid.n_prefill.max()))
    return 1 << (most - 1).bit_length()


def as_arrays(tree: Any) -> Any:
    """Normalises leaves once at the edge: one dtype, so that spelling never recompiles."""

    def convert(leaf):
        whole = np.issubdtype(np.asarray(leaf).dtype, np.integer)
        return jnp.asarray(leaf, jnp.int32 if whole else float)

    return jax.tree.map(convert, tree)
