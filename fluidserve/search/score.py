"""The jitted entry of the search: goodput, metrics, limits and doubts of a whole grid in one call.

The grid is scored in chunks of a fixed size inside one compiled loop, so that a question of any
size uses the same program and the memory stays small. The same program describes a handful of
candidates in full (`describe_rows`): latencies cost a search of their own, which scoring skips.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fluidserve._pytree import pytree, static
from fluidserve._typing import Leaf
from fluidserve.deploy.binding import binding_of
from fluidserve.deploy.closed_score import closed_score
from fluidserve.deploy.confidence import NUDGE, doubts_of
from fluidserve.deploy.disaggregated import (
    Metrics,
    Plan,
    at_rate,
    largest_rate,
    metrics_of,
)
from fluidserve.deploy.early import early_latencies, early_limits, early_metrics, early_state
from fluidserve.deploy.latency import STEPS, Latencies, latencies
from fluidserve.deploy.promise import has_shares, own_shares, scaled
from fluidserve.errors import InputError
from fluidserve.goodput import Then, root_rate
from fluidserve.problem import Problem
from fluidserve.search.grid import Grid
from fluidserve.specs.deployment import Dispatch
from fluidserve.specs.lengths import LengthBins
from fluidserve.specs.slo import Slo
from fluidserve.stages.decode import DecodeLengths, decode_lengths
from fluidserve.stages.prefill import PrefillShape, prefill_shape
from fluidserve.timing.instance import Instance, System
from fluidserve.timing.kv import KvShape, kv_shape, token_bytes
from fluidserve.timing.profile import FirstToken

CHUNK = 1024
_SMALLEST_ROOM = 4 * CHUNK


@pytree
class Question:
    """What all candidates of a grid share.

    Attributes:
      bins: the lengths.
      slo: the promise.
      arrival_scv: squared coefficient of variation between arrivals.
      dispersion: variance over mean of the arrivals per minute.
      kv_bytes_per_token: bytes to hand over per token that a prompt holds.
      link_bandwidth: of the link between the pools, B/s; may be ``inf``.
      handover_overhead: fixed time of one transfer, s.
      max_batch: batch cap of a decode instance.
      first_token: where the first token leaves.
      prefill_batch: most prompts that a prefill instance computes together.
      prefill_tokens: most tokens of several prompts that it computes together; None for any.
      dispatch: how requests are spread over the instances of both pools.
      prefix_hit: share of the prompt tokens found in the prefix cache; None without one, which is
        a program of its own.
      kv: what of its tokens a prompt hands over; None for all.
      horizon: the first so many requests are judged; None for steady state, which is a program of
        its own.
      users: of a closed loop; None for an open one, which is a program of its own.
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
    prefill_tokens: Leaf | None = None
    dispatch: Dispatch = static(default="shared")
    prefix_hit: Leaf | None = None
    kv: KvShape | None = None
    horizon: Leaf | None = None
    users: Leaf | None = None


def question_of(problem: Problem) -> Question:
    """What the candidates of a problem share, in the form of which programs are fewest.

    Raises:
      InputError: a limit on end-to-end latency or ITL over the first requests, which no formula
        has.
    """
    if problem.slo.e2e is not None and problem.horizon is not None:
        raise InputError("e2e: there is no formula for it over a horizon; leave one of them out")
    if problem.slo.itl is not None and problem.horizon is not None:
        raise InputError("itl: there is no formula for it over a horizon; leave one of them out")
    engine, bins, slo = problem.engine, problem.bins, problem.slo
    if slo.e2e is None:
        bins = dataclasses.replace(bins, gap_nodes=None)
    if has_shares(slo):
        ttft, tpot, e2e, *itl = own_shares(slo)
        slo = dataclasses.replace(
            slo,
            ttft_share=ttft,
            tpot_share=tpot,
            e2e_share=e2e,
            itl_share=itl[0] if itl else None,
        )
    return Question(
        bins=bins,
        slo=slo,
        arrival_scv=problem.workload.arrival_scv,
        dispersion=problem.workload.dispersion,
        kv_bytes_per_token=token_bytes(problem.model),
        link_bandwidth=engine.link_bandwidth,
        handover_overhead=engine.profile.handover_overhead,
        max_batch=float(engine.max_batch),
        first_token=engine.first_token,
        prefill_batch=engine.prefill_batch,
        prefill_tokens=problem.prefill_tokens,
        dispatch=engine.dispatch,
        prefix_hit=problem.prefix_hit,
        kv=kv_shape(problem.model),
        horizon=None if problem.horizon is None else float(problem.horizon),
        users=problem.workload.concurrency,
    )


@pytree
class Scores:
    """What is known of each candidate; arrays whose last axis is the grid's.

    Attributes:
      goodput: largest rate at which the SLO is met, 1/s; 0 when none.
      metrics: the deployment at that rate, or at a vanishing rate when goodput is 0.
      binding: a `Binding`.
      doubts: bits of `Doubt`.
      asked: the deployment at the rate asked for, or else at its goodput.
      latencies: TTFT and TPOT at that rate; meaningful only from `describe_rows`.
      throughput: in a closed loop, requests completed whether or not the SLO is met, 1/s; there
        `metrics` and `asked` are those with all users.
    """

    goodput: Leaf
    metrics: Metrics
    binding: Leaf
    doubts: Leaf
    asked: Metrics
    latencies: Latencies
    throughput: Leaf | None = None


@pytree
class Picks:
    """Which candidate is what.

    Attributes:
      prefill: index of the prefill shape.
      decode: index of the decode shape.
      n_prefill: prefill instances.
      n_decode: decode instances.
      rate: rate to evaluate the candidate at, 1/s; 0 for its goodput.
    """

    prefill: Leaf
    decode: Leaf
    n_prefill: Leaf
    n_decode: Leaf
    rate: Leaf


def shared_parts(question: Question, shapes: Instance) -> tuple[PrefillShape, DecodeLengths]:
    """What candidates of the same instance shapes share: their stage times and decode lengths."""
    prefill = prefill_shape(
        shapes,
        question.bins,
        question.prefix_hit,
        batch=question.prefill_batch,
        tokens=question.prefill_tokens,
    )
    return prefill, decode_lengths(question.bins, question.first_token, shapes.kv)


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
        prefill_tokens=question.prefill_tokens,
        first_token=question.first_token,
        dispatch=question.dispatch,
        prefix_hit=question.prefix_hit,
        kv=question.kv,
    )
    # the tables are far larger than what else there is of a shape: they stay where they are
    small = dataclasses.replace(prefill, ahead=None)
    return Plan(
        system=system,
        prefill=dataclasses.replace(
            jax.tree.map(at(picks.prefill), small), ahead=prefill.ahead, row=picks.prefill
        ),
        lengths=lengths.of(picks.decode),
        bins=question.bins,
        arrival_scv=question.arrival_scv,
        dispersion=question.dispersion,
        horizon=question.horizon,
    )


def score_plan(
    plan: Plan, slo: Slo, rate: jax.Array, quantile_steps: Leaf, *, max_replicas: int
) -> Scores:
    """Goodput of a batch of candidates, and what is known of them there and at `rate`."""

    def at(rate, on_limits):
        limits = scaled(slo, on_limits)
        if plan.horizon is not None:
            early = early_state(plan, rate, max_replicas=max_replicas)
            return early_metrics(plan, limits, rate, early), early
        state = at_rate(plan, rate, max_replicas=max_replicas)
        return metrics_of(plan, limits, rate, state), state

    limits = largest_rate(plan) if plan.horizon is None else early_limits(plan, slo)
    upper = functools.reduce(jnp.minimum, limits)
    goodput, (metrics, slower, tighter, (asked, state)) = goodput_and_around(at, upper, rate)
    described = latencies if plan.horizon is None else early_latencies
    return Scores(
        goodput=goodput,
        metrics=metrics,
        binding=binding_of(goodput, metrics, limits, plan, slo),
        doubts=doubts_of(plan, slo, metrics, slower, tighter),
        asked=asked,
        latencies=described(plan, state, quantile_steps, slo),
    )


def goodput_and_around(
    at: Callable[[Leaf, Leaf], tuple[Metrics, Any]], upper: Leaf, rate: Leaf
) -> tuple[Leaf, list[Any]]:
    """Goodput, and a deployment there, close to it, and at a rate that is asked for.

    Args:
      at: metrics and state at a rate, under limits multiplied by a factor.
      upper: rate that cannot be carried, 1/s.
      rate: asked for, 1/s; 0 for the goodput.

    Returns:
      goodput, 1/s; metrics there; `Metrics.excess` at ``1 - NUDGE`` of it; the same at the goodput
      under limits as much tighter; and metrics and state at `rate`.
    """

    def excess(result):
        return result[0].excess

    return root_rate(
        at,
        excess,
        0.0,
        upper,
        then=(
            Then(lambda found: found, 1.0, lambda result: result[0]),
            Then(lambda found: (1.0 - NUDGE) * found, 1.0, excess),
            Then(lambda found: found, 1.0 - NUDGE, excess),
            Then(lambda found: jnp.where(rate > 0.0, rate, found), 1.0, lambda result: result),
        ),
    )


def score_users(
    plan: Plan, slo: Slo, users: Leaf, quantile_steps: Leaf, *, max_replicas: int
) -> Scores:
    """The same for a closed loop, in which no rate is searched."""
    found = closed_score(plan, slo, users, quantile_steps, max_replicas=max_replicas)
    return Scores(
        goodput=found.goodput,
        metrics=found.metrics,
        binding=found.binding,
        doubts=found.doubts,
        asked=found.metrics,
        latencies=found.latencies,
        throughput=found.throughput,
    )


@functools.partial(jax.jit, static_argnames=("max_replicas",))
def score(
    question: Question,
    shapes: Instance,
    picks: Picks,
    count: Leaf,
    quantile_steps: Leaf,
    *,
    max_replicas: int,
) -> Scores:
    """Scores the first `count` candidates; the rest of the arrays is room.

    Args:
      question: what the candidates share.
      shapes: instance shapes, arrays of `MAX_SHAPES`.
      picks: arrays of a multiple of `CHUNK`.
      count: candidates.
      quantile_steps: bisections of each latency quantile; 0 leaves them out.
      max_replicas: largest instance count the compiled program holds.
    """

    def scored(plan: Plan, rate: Leaf) -> Scores:
        asked = rate if question.users is None else question.users
        evaluate = score_plan if question.users is None else score_users
        return evaluate(plan, question.slo, asked, quantile_steps, max_replicas=max_replicas)

    return over_plans(scored, question, shapes, picks, count)


def over_plans(
    evaluate: Callable[[Plan, Leaf], Any],
    question: Question,
    shapes: Instance,
    picks: Picks,
    count: Leaf,
) -> Any:
    """Applies a function of plans and their rates to candidates, within a compiled program.

    Args:
      evaluate: takes `CHUNK` candidates and the rates of their picks, 1/s.
      question: what the candidates share.
      shapes: instance shapes.
      picks: arrays of a multiple of `CHUNK`.
      count: candidates; the rest of the arrays is room.
    """
    prefill, lengths = shared_parts(question, shapes)

    def one_chunk(here: Picks) -> Any:
        return evaluate(candidates(question, shapes, prefill, lengths, here), here.rate)

    return in_chunks(one_chunk, picks, count, CHUNK)


def in_chunks(one_chunk: Callable[[Any], Any], picks: Any, count: Leaf, size: int) -> Any:
    """Applies a function to `size` candidates at a time, in one compiled loop.

    Args:
      one_chunk: takes picks of `size` candidates.
      picks: arrays of a multiple of `size`.
      count: candidates; what chunks behind them would give is zero.
      size: candidates of a chunk.

    Returns:
      what `one_chunk` does, its last axis as long as the picks.
    """

    @jax.jit  # traced once for the shapes and for the loop
    def at(start):
        return one_chunk(jax.tree.map(lambda x: lax.dynamic_slice(x, (start,), (size,)), picks))

    room = jax.tree.leaves(picks)[0].shape
    parts = jax.eval_shape(at, jnp.zeros((), jnp.int32))
    empty = jax.tree.map(lambda x: jnp.zeros(x.shape[:-1] + room, x.dtype), parts)

    def body(i, whole):
        start = jnp.asarray(i * size, jnp.int32)
        return jax.tree.map(
            lambda into, part: lax.dynamic_update_slice_in_dim(into, part, start, axis=-1),
            whole,
            at(start),
        )

    return lax.fori_loop(0, (count + size - 1) // size, body, empty)


@functools.singledispatch
def score_grid(grid: Grid, question: Question) -> Scores:
    """Scores a grid in one call; NumPy arrays of its length."""
    everything = np.arange(len(grid))
    return _call(grid, question, everything, np.zeros(len(grid)), quantile_steps=0)


@functools.singledispatch
def describe_rows(grid: Grid, question: Question, rows: np.ndarray, rates: np.ndarray) -> Scores:
    """Scores the candidates `rows` of a grid, with their latencies at `rates`, 1/s."""
    return _call(grid, question, rows, rates, quantile_steps=STEPS)


@functools.singledispatch
def after_one_failure(grid: Grid, question: Question, rows: np.ndarray) -> np.ndarray:
    """Goodput of the candidates `rows` with one instance less, of the pool that hurts more, 1/s.

    Zero where that pool has a single instance. Requests that the instance held are not counted.
    """
    fewer = [
        dataclasses.replace(grid, n_prefill=grid.n_prefill - 1),
        dataclasses.replace(grid, n_decode=grid.n_decode - 1),
    ]
    goodput = np.zeros((2, len(rows)))
    for i, (part, counts) in enumerate(zip(fewer, ("n_prefill", "n_decode"), strict=True)):
        left = np.flatnonzero(getattr(part, counts)[rows] > 0)
        if len(left):
            idle = np.zeros(len(left))
            found = _call(part, question, rows[left], idle, quantile_steps=0, of=grid)
            goodput[i, left] = found.goodput
    return goodput.min(axis=0)


def _call(
    grid: Grid,
    question: Question,
    rows: np.ndarray,
    rates: np.ndarray,
    *,
    quantile_steps: int,
    of: Grid | None = None,
) -> Scores:
    """Runs the compiled program on some rows, the one of the grid `of` where given.

    Arrays are padded to the room of the whole grid, so that few programs are ever compiled.
    """
    arrays = program_arrays(grid, question, rows, rates)
    found = score(*arrays, len(rows), quantile_steps, max_replicas=replica_bound(of or grid))
    return cut(found, len(rows))


def program_arrays(
    grid: Grid, question: Question, rows: np.ndarray, rates: np.ndarray
) -> tuple[Question, Instance, Picks]:
    """What compiled programs take of the candidates `rows` at `rates`, 1/s."""
    room = room_of(_SMALLEST_ROOM, max(len(grid), grid.room))
    return as_arrays((question, grid.stacked(), picks_of(grid, rows, rates, room)))


def picks_of(grid: Grid, rows: np.ndarray, rates: np.ndarray, room: int) -> Picks:
    """The candidates `rows` of a grid at `rates`, 1/s, padded to a room."""
    return Picks(
        prefill=padded(grid.prefill[rows], room, np.int32),
        decode=padded(grid.decode[rows], room, np.int32),
        n_prefill=padded(grid.n_prefill[rows], room, float),
        n_decode=padded(grid.n_decode[rows], room, float),
        rate=padded(rates, room, float),
    )


def room_of(smallest: int, candidates: int) -> int:
    """Room for so many candidates: four times the smallest as often as needed."""
    room = smallest
    while room < candidates:
        room *= 4
    return room


def padded(values: np.ndarray, room: int, dtype: type) -> np.ndarray:
    """Values with the last one repeated up to the room."""
    return np.concatenate([values, np.repeat(values[-1:], room - len(values))]).astype(dtype)


def cut(scores: Scores, count: int) -> Scores:
    """NumPy arrays of the first `count` candidates."""
    return jax.tree.map(lambda x: np.asarray(x)[..., :count], scores)


def replica_bound(grid: Grid) -> int:
    """A power of two that no instance count of the grid exceeds, at least 64."""
    return room_for(max(int(grid.n_prefill.max()), grid.most_prefill))


def room_for(replicas: int) -> int:
    """A power of two of at least so many instances and at least 64."""
    return 1 << (max(64, replicas) - 1).bit_length()


def as_arrays(tree: Any) -> Any:
    """Normalises leaves once at the edge: one dtype, so that spelling never recompiles.

    Whole numbers stay so in arrays, which are indices; a limit of ``1`` is the number 1.0.
    """

    def convert(leaf):
        whole = np.ndim(leaf) > 0 and np.issubdtype(np.asarray(leaf).dtype, np.integer)
        return jnp.asarray(leaf, jnp.int32 if whole else float)

    return jax.tree.map(convert, tree)
