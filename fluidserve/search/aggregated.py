"""Candidates whose instances do both phases, scored in one call as disaggregated ones are.

`score_grid`, `describe_rows` and `after_one_failure` of `fluidserve.search.score` take these grids
as well. Prompts first and prompts in pieces are two programs, since their formulas differ.
"""

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf
from fluidserve.deploy import aggregated_gaps as _registers_gaps  # noqa: F401
from fluidserve.deploy import aggregated_latency as _registers_latencies  # noqa: F401
from fluidserve.deploy.aggregated import (
    AggregatedPlan,
    aggregated_at,
    aggregated_metrics,
    largest_aggregated_rate,
    prepare_aggregated,
)
from fluidserve.deploy.aggregated_doubts import aggregated_binding, aggregated_doubts
from fluidserve.deploy.latency import STEPS, latencies
from fluidserve.deploy.promise import scaled
from fluidserve.problem import PREFILL_TOKENS, Problem
from fluidserve.search.grid import MAX_SHAPES, Grid, Shape, fitting_shapes, misfit, stack_shapes
from fluidserve.search.score import (
    Question,
    Scores,
    after_one_failure,
    as_arrays,
    cut,
    describe_rows,
    goodput_and_around,
    in_chunks,
    padded,
    room_of,
    score_grid,
)
from fluidserve.specs.deployment import TOKEN_BUDGETS, Chunked, Colocated, Kind, KvPolicy, Pool
from fluidserve.timing.instance import AggregatedSystem, Instance

CHUNK = 128
_SMALLEST_ROOM = 4 * CHUNK


@dataclasses.dataclass(frozen=True)
class AggregatedGrid:
    """All candidates of one kind, as index arrays of one length.

    Attributes:
      kind: ``colocated`` or ``chunked``.
      shapes: instance shapes that fit.
      shape: index of the shape of each candidate.
      replicas: its instances.
      token_budget: its token budget; 0 where prompts go first.
      gpu: catalog name of the accelerator.
      rejected: shapes left out, counted by reason.
      prefill_tokens: most prompt tokens of one iteration where prompts go first.
      kv_policy: what of its KV a request needs before it is admitted.
    """

    kind: Kind
    shapes: list[Shape]
    shape: np.ndarray
    replicas: np.ndarray
    token_budget: np.ndarray
    gpu: str
    rejected: Counter
    prefill_tokens: float
    kv_policy: KvPolicy

    def __len__(self) -> int:
        return len(self.shape)

    @property
    def gpus(self) -> np.ndarray:
        """GPUs of each candidate."""
        size = np.array([s.gpus for s in self.shapes], int)
        return self.replicas * size[self.shape]

    @property
    def alike(self) -> np.ndarray:
        """A number that candidates share whose idle latencies are the same."""
        return self.shape * (1 + int(self.token_budget.max(initial=0))) + self.token_budget

    def deployment(self, i: int) -> Colocated | Chunked:
        """Candidate `i` as a description."""
        s = self.shapes[self.shape[i]]
        pool = Pool(replicas=int(self.replicas[i]), tp=s.tp, pp=s.pp, gpu=self.gpu)
        if self.kind == "colocated":
            return Colocated(pool=pool)
        return Chunked(pool=pool, token_budget=int(self.token_budget[i]))


Candidates = Grid | AggregatedGrid


def aggregated_grid(
    problem: Problem,
    kind: Kind,
    budget: int,
    *,
    token_budgets: tuple[int, ...] = TOKEN_BUDGETS,
    only: Colocated | Chunked | None = None,
) -> AggregatedGrid:
    """Every (shape, replicas, token budget) within `budget` GPUs.

    Args:
      problem: the question.
      kind: ``colocated`` or ``chunked``.
      budget: most GPUs.
      token_budgets: to compare; without effect where prompts go first.
      only: a single deployment instead of all; an empty grid when it does not fit.
    """
    if only is not None:
        shapes, rejected = _single(problem, only)
        token_budgets = (only.token_budget,) if isinstance(only, Chunked) else (0,)
        counts = [[only.pool.replicas]] if shapes else []
    else:
        shapes, rejected = fitting_shapes(problem, budget + 1)
        token_budgets = token_budgets if kind == "chunked" else (0,)
        counts = [range(1, budget // s.gpus + 1) for s in shapes]
    index = [
        (i, n, tokens)
        for i, several in enumerate(counts)
        for n in several
        for tokens in token_budgets
    ]
    shape, replicas, token_budget = np.array(index, int).reshape(-1, 3).T
    return AggregatedGrid(
        kind=kind,
        shapes=shapes,
        shape=shape,
        replicas=replicas,
        token_budget=token_budget,
        gpu=problem.gpu.name,
        rejected=rejected,
        prefill_tokens=problem.prefill_tokens or PREFILL_TOKENS,
        kv_policy=problem.engine.kv_policy,
    )


def _single(problem: Problem, only: Colocated | Chunked) -> tuple[list[Shape], Counter]:
    """The shape of one deployment, or why it does not fit."""
    pool = only.pool
    instance = problem.instance(pool.tp, pool.pp)
    reason = misfit(problem, instance, tp=pool.tp, pp=pool.pp)
    shapes = [] if reason else [Shape(tp=pool.tp, pp=pool.pp, instance=instance)]
    return shapes, Counter([reason] if reason else [])


@pytree
class AggregatedPicks:
    """Which candidate is what.

    Attributes:
      shape: index of the shape.
      replicas: instances.
      token_budget: tokens of an iteration; None where prompts go first.
      rate: rate to evaluate the candidate at, 1/s; 0 for its goodput.
    """

    shape: Leaf
    replicas: Leaf
    token_budget: Leaf | None
    rate: Leaf


def aggregated_candidates(
    question: Question,
    shapes: Instance,
    picks: AggregatedPicks,
    prefill_tokens: Leaf,
    kv_policy: KvPolicy,
) -> AggregatedPlan:
    """Gathers the shapes of some candidates into one batch."""
    system = AggregatedSystem(
        instance=jax.tree.map(lambda leaf: leaf[picks.shape], shapes),
        replicas=picks.replicas,
        max_batch=question.max_batch,
        prefill_tokens=prefill_tokens,
        token_budget=picks.token_budget,
        dispatch=question.dispatch,
        kv_policy=kv_policy,
        prefix_hit=question.prefix_hit,
    )
    plan = prepare_aggregated(system, question.bins, question.arrival_scv)
    return dataclasses.replace(plan, dispersion=question.dispersion)


@functools.partial(
    jax.jit,
    static_argnames=("kv_policy",),
    compiler_options={"xla_backend_optimization_level": 0},
)
def score_aggregated(
    question: Question,
    shapes: Instance,
    picks: AggregatedPicks,
    prefill_tokens: Leaf,
    count: Leaf,
    quantile_steps: Leaf,
    *,
    kv_policy: KvPolicy,
) -> Scores:
    """Scores the first `count` candidates; the rest of the arrays is room.

    Candidates are few: optimising the program costs seconds and saves a tenth of one.

    Args:
      question: what the candidates share.
      shapes: instance shapes, arrays of `MAX_SHAPES`.
      picks: arrays of a multiple of `CHUNK`.
      prefill_tokens: most prompt tokens of one iteration where prompts go first.
      count: candidates.
      quantile_steps: bisections of each latency quantile; 0 leaves them out.
      kv_policy: what of its KV a request needs before it is admitted.
    """

    def scored(plan: AggregatedPlan, rate: Leaf) -> Scores:
        return _score_plan(plan, question, rate, quantile_steps)

    return over_plans(scored, question, shapes, picks, prefill_tokens, count, kv_policy)


def over_plans(
    evaluate: Callable[[AggregatedPlan, Leaf], Any],
    question: Question,
    shapes: Instance,
    picks: AggregatedPicks,
    prefill_tokens: Leaf,
    count: Leaf,
    kv_policy: KvPolicy,
) -> Any:
    """`fluidserve.search.score.over_plans` for these candidates."""

    def one_chunk(here: AggregatedPicks) -> Any:
        plan = aggregated_candidates(question, shapes, here, prefill_tokens, kv_policy)
        return evaluate(plan, here.rate)

    return in_chunks(one_chunk, picks, count, CHUNK)


def _score_plan(
    plan: AggregatedPlan, question: Question, rate: Array, quantile_steps: Leaf
) -> Scores:
    slo = question.slo

    def at(rate, on_limits):
        state = aggregated_at(plan, rate)
        return aggregated_metrics(plan, scaled(slo, on_limits), state), state

    upper = largest_aggregated_rate(plan)
    goodput, (metrics, slower, tighter, (asked, state)) = goodput_and_around(at, upper, rate)
    return Scores(
        goodput=goodput,
        metrics=metrics,
        binding=aggregated_binding(goodput, metrics, upper, plan, slo),
        doubts=aggregated_doubts(plan, slo, metrics, slower, tighter),
        asked=asked,
        latencies=latencies(plan, state, quantile_steps, slo),
    )


@score_grid.register(AggregatedGrid)
def score_aggregated_grid(grid: AggregatedGrid, question: Question) -> Scores:
    """`score_grid` for these candidates."""
    return _call(grid, question, np.arange(len(grid)), np.zeros(len(grid)), quantile_steps=0)


@describe_rows.register(AggregatedGrid)
def _describe_rows(
    grid: AggregatedGrid, question: Question, rows: np.ndarray, rates: np.ndarray
) -> Scores:
    return _call(grid, question, rows, rates, quantile_steps=STEPS)


@after_one_failure.register(AggregatedGrid)
def _after_one_failure(grid: AggregatedGrid, question: Question, rows: np.ndarray) -> np.ndarray:
    fewer = dataclasses.replace(grid, replicas=grid.replicas - 1)
    goodput = np.zeros(len(rows))
    left = np.flatnonzero(fewer.replicas[rows] > 0)
    if len(left):
        found = _call(fewer, question, rows[left], np.zeros(len(left)), quantile_steps=0, of=grid)
        goodput[left] = found.goodput
    return goodput


def _call(
    grid: AggregatedGrid,
    question: Question,
    rows: np.ndarray,
    rates: np.ndarray,
    *,
    quantile_steps: int,
    of: AggregatedGrid | None = None,
) -> Scores:
    """Runs the compiled program on some rows, the one of the grid `of` where given."""
    arrays = program_arrays(grid, question, rows, rates, room=len(of or grid))
    found = score_aggregated(*arrays, len(rows), quantile_steps, kv_policy=grid.kv_policy)
    return cut(found, len(rows))


def program_arrays(
    grid: AggregatedGrid, question: Question, rows: np.ndarray, rates: np.ndarray, *, room: int
) -> tuple[Question, Instance, AggregatedPicks, Leaf]:
    """What compiled programs take of the candidates `rows` at `rates`, 1/s.

    Args:
      grid: the candidates.
      question: what they share.
      rows: some of them.
      rates: theirs, 1/s.
      room: candidates that the arrays must at least have room for.
    """
    room = room_of(_SMALLEST_ROOM, room)
    in_pieces = grid.kind == "chunked"
    picks = AggregatedPicks(
        shape=padded(grid.shape[rows], room, np.int32),
        replicas=padded(grid.replicas[rows], room, float),
        token_budget=padded(grid.token_budget[rows], room, float) if in_pieces else None,
        rate=padded(rates, room, float),
    )
    # the pools' own settings are no part of these programs
    question = dataclasses.replace(
        question,
        kv_bytes_per_token=0.0,
        link_bandwidth=0.0,
        handover_overhead=0.0,
        first_token="prefill",
        prefill_batch=1,
        prefill_tokens=None,
        kv=None,
    )
    stacked = stack_shapes(grid.shapes, MAX_SHAPES)
    return as_arrays((question, stacked, picks, float(grid.prefill_tokens)))
