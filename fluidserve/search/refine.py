"""The refining tier: what served requests say about closed formulas of aggregated serving.

Candidates of one shape and token budget differ only in their number of instances. One instance of
each serves sampled requests, and what that says of the formulas' goodput, as a factor on the rate,
is taken to hold for any number of instances. The engines of `fluidserve.sampled` serve all shapes
at once. What then comes out on top serves more requests, with all its instances. What the engines
do not have (pipelines, windows, preemption, limits on single gaps) goes through the event
simulator, one by one, but only what would come out on top; the rest takes the worst factor found
there.
"""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from fluidserve.errors import InputError
from fluidserve.eventsim import goodput as simulated_goodput
from fluidserve.problem import Problem
from fluidserve.results import Refined
from fluidserve.sampled.aggregated import MOST_ENGINES, check_aggregated
from fluidserve.sampled.goodput import goodput as sampled_goodput
from fluidserve.sampled.trace import REQUESTS, SEEDS, draw_trace
from fluidserve.search.aggregated import AggregatedGrid, score_aggregated_grid
from fluidserve.search.score import Question, Scores
from fluidserve.status import Doubt
from fluidserve.timing.instance import AggregatedSystem

_TRACES = 2
"""Traces that a candidate is served on."""
_NOISY = 0.03
_FARTHEST = 4.0
_LARGE, _LONG = 60.0, 6000
"""From a batch on that many requests take to fill, traces are as long."""
_CONTENDING = 0.6
"""Goodput per GPU, as a share of the best, from which on an error of the formulas matters."""
_ONE_BY_ONE = 4
_ON_TOP = 3
_FINALISTS, _ROUNDS = 3, 2
_TURNS = 20
"""Times that a trace must fill all batches: with fewer, the system is still filling."""
_REQUESTS, _MOST_REQUESTS = 1000, 20_000
_TOLERANCE = 0.02


@dataclasses.dataclass(frozen=True)
class Refinement:
    """What serving requests says of each candidate of a grid, arrays of its length.

    Attributes:
      factor: goodput found over that of the formulas; 1 where nothing is known.
      error: standard error of the factor by the spread between traces; 0 from a single one.
      served: whether it is this candidate's own.
    """

    factor: np.ndarray
    error: np.ndarray
    served: np.ndarray

    def applied(self, scores: Scores) -> Scores:
        """Scores with these goodputs, and with the doubts that are left."""
        settled = ~int(Doubt.SCREENED | Doubt.BUBBLES | Doubt.TIGHT_TTFT)
        noisy = np.where(self.error > _NOISY * self.factor, int(Doubt.NOISY), 0)
        doubts = np.asarray(scores.doubts)
        doubts = np.where(self.served, (doubts & settled) | noisy, doubts)
        goodput = np.asarray(scores.goodput) * self.factor
        return dataclasses.replace(scores, goodput=goodput, doubts=doubts)

    def of(self, row: int) -> Refined | None:
        """What was found for a candidate; None where nothing was."""
        if not self.served[row]:
            return None
        return Refined(factor=float(self.factor[row]), error=float(self.error[row]))


def refine(
    problem: Problem,
    grid: AggregatedGrid,
    question: Question,
    goodput: np.ndarray,
    ranked: Callable[[np.ndarray], np.ndarray],
) -> Refinement:
    """Serves requests: one instance of each shape and token budget, then all of the best.

    Args:
      problem: the question.
      grid: the candidates, not empty.
      question: what they share.
      goodput: theirs by the formulas, 1/s.
      ranked: candidates in the order of the answer, best first, given their goodputs.
    """
    _, kept, inverse = np.unique(grid.alike, return_index=True, return_inverse=True)
    alone = dataclasses.replace(
        grid,
        shape=grid.shape[kept],
        token_budget=grid.token_budget[kept],
        replicas=np.ones(len(kept), int),
    )
    scores = score_aggregated_grid(alone, question)
    formulas = np.asarray(scores.goodput, float)
    found = _Found(formulas)
    flat = np.array([s.pp == 1 for s in grid.shapes])[alone.shape]
    if problem.slo.itl is not None:
        flat = np.zeros(len(kept), bool)
    per_gpu = formulas / alone.gpus
    rows = np.flatnonzero(flat & (per_gpu > _CONTENDING * per_gpu.max()))
    batch = np.asarray(scores.metrics.batch)
    held = float(np.max(batch[rows], initial=0.0))
    inside = batch[inverse] * grid.replicas
    small = (grid.replicas <= MOST_ENGINES) & (_TURNS * inside <= _LONG)
    if len(rows) > _FINALISTS or not small.all():
        requests = _LONG if held > _LARGE else REQUESTS
        _sample(problem, alone, question, rows, found, formulas, requests)
    whole, tried = _Found(goodput), np.zeros(len(grid), bool)
    for _ in range(_ROUNDS):
        guess = goodput * whole.or_else(found, inverse).factor
        order = ranked(guess)[:_FINALISTS]
        left = order[flat[inverse[order]] & ~tried[order] & small[order]]
        if not len(left):
            break
        tried[left] = True
        _sample(problem, grid, question, left, whole, guess, _LONG)
    for _ in range(_ONE_BY_ONE):
        known = whole.or_else(found, inverse)
        order = ranked(goodput * known.factor)[:_ON_TOP]
        single = inverse[order[~known.served[order] & (formulas[inverse[order]] > 0)]]
        if not len(single):
            break
        first = int(single[0])
        requests = round(np.clip(_TURNS * batch[first], _REQUESTS, _MOST_REQUESTS))
        _simulate(problem, alone, first, found, requests)
    found.spread_the_worst(~flat)
    known = whole.or_else(found, inverse)
    return Refinement(factor=known.factor, error=known.error, served=known.served)


class _Found:
    """Factors while they are being found; arrays of one length.

    Attributes:
      formulas: goodputs that they are on, 1/s.
      factor: goodput found over that.
      error: its standard error.
      served: whether it is what served requests say.
    """

    def __init__(self, formulas: np.ndarray):
        self.formulas = formulas
        self.factor, self.error = np.ones(len(formulas)), np.zeros(len(formulas))
        self.served = np.zeros(len(formulas), bool)

    def or_else(self, single: "_Found", inverse: np.ndarray) -> "_Found":
        """What is known of candidates: their own, or what single instances say."""
        known = _Found(self.formulas)
        for name in ("factor", "error", "served"):
            other = getattr(single, name)[inverse]
            setattr(known, name, np.where(self.served, getattr(self, name), other))
        return known

    def take(self, rows: np.ndarray, value: np.ndarray, error: np.ndarray) -> None:
        """Takes in goodputs and their errors, 1/s, as far as they can be believed."""
        usable = (value > 0) & (value < _FARTHEST * self.formulas[rows])
        rows = rows[usable]
        self.factor[rows] = value[usable] / self.formulas[rows]
        self.error[rows] = error[usable] / self.formulas[rows]
        self.served[rows] = True

    def spread_the_worst(self, pipelines: np.ndarray) -> None:
        """Lets other pipelines be as bad as the worst one that was served."""
        known = self.factor[pipelines & self.served]
        if len(known):
            others = pipelines & ~self.served
            self.factor[others] = np.minimum(self.factor[others], known.min())


def _sample(
    problem: Problem,
    grid: AggregatedGrid,
    question: Question,
    rows: np.ndarray,
    found: _Found,
    guess: np.ndarray,
    requests: int,
) -> None:
    """Serves `requests` with many candidates at once, where the sampled engines can."""
    if not len(rows):
        return
    system = _systems(grid, question, rows)
    try:
        check_aggregated(system)
    except InputError:
        return
    drawn = [draw_trace(problem.workload, seed=s, requests=requests) for s in SEEDS[:_TRACES]]
    served = sampled_goodput(system, problem.slo, drawn, guess=guess[rows])
    value = np.where(served.bracketed, served.value, 0.0)
    found.take(rows, value, served.error)


def _simulate(
    problem: Problem, grid: AggregatedGrid, row: int, found: _Found, requests: int
) -> None:
    """Serves `requests` with one candidate by the event simulator."""
    system = problem.system(grid.deployment(row))
    served = simulated_goodput(
        system,
        problem.workload,
        problem.slo,
        guess=float(found.formulas[row]),
        requests=requests,
        seeds=[0],
        tolerance=_TOLERANCE,
    )
    least = max(served.value, float(found.formulas[row]) / _FARTHEST**2)
    found.take(np.array([row]), np.array([least]), np.zeros(1))


def _systems(grid: AggregatedGrid, question: Question, rows: np.ndarray) -> AggregatedSystem:
    """Some candidates as a batch."""
    instances = [grid.shapes[i].instance for i in grid.shape[rows]]
    one = np.ones(len(rows))
    return AggregatedSystem(
        instance=jax.tree.map(lambda *x: np.asarray(x, float), *instances),
        replicas=one * grid.replicas[rows],
        max_batch=one * float(question.max_batch),
        prefill_tokens=one * grid.prefill_tokens,
        token_budget=one * grid.token_budget[rows] if grid.kind == "chunked" else None,
        dispatch=question.dispatch,
        kv_policy=grid.kv_policy,
        prefix_hit=question.prefix_hit,
    )
