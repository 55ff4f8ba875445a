"""The main question: which deployments of a budget serve most, or which least GPUs serve a rate."""

import dataclasses
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np

from fluidserve.errors import InputError, NoFeasibleDeployment
from fluidserve.problem import Problem
from fluidserve.results import DeploymentResult, Latency, Phases, PlanResult, Screening
from fluidserve.search.aggregated import AggregatedGrid, Candidates, aggregated_grid
from fluidserve.search.grid import (
    MAX_CANDIDATES,
    Grid,
    count_deployments,
    disaggregated_grid,
    fitting_shapes,
)
from fluidserve.search.infeasible import nothing_fits, nothing_serves, single_tokens
from fluidserve.search.refine import Refinement, refine
from fluidserve.search.score import (
    Question,
    Scores,
    after_one_failure,
    describe_rows,
    question_of,
    score_grid,
)
from fluidserve.specs.deployment import TOKEN_BUDGETS, Deployment, Disaggregated, Kind
from fluidserve.specs.slo import limits_of
from fluidserve.status import Binding, Doubt, confidence_level, doubt_sentences

TIE = 0.01
"""Goodputs this close, as a share of the larger, cannot be told apart by the formulas."""

_LEAST = 1e-30
_NEARLY = 0.95
"""Share of a wanted goodput from which on a candidate may turn out to reach it."""


def plan(
    problem: Problem,
    *,
    budget: int,
    rate: float | None = None,
    fewest: bool = False,
    top: int = 10,
    kinds: Sequence[Kind] | None = None,
    token_budgets: tuple[int, ...] = TOKEN_BUDGETS,
) -> PlanResult:
    """Ranks every deployment of at most `budget` GPUs.

    Where there are more than `fluidserve.search.grid.MAX_CANDIDATES`, tables pick those that are
    scored, and `PlanResult.screening` says how far off they can be.

    Args:
      problem: model, accelerator, traffic, promise, engine.
      budget: most GPUs of a deployment.
      rate: arrival rate to be served, 1/s. Given, deployments that reach it are ranked by fewest
        GPUs, then by goodput. Otherwise all are ranked by goodput; among those within `TIE` of
        each other, fewer GPUs come first.
      fewest: rank deployments that meet the SLO by fewest GPUs also without a rate, as for a
        closed loop whose users are given.
      top: deployments to return.
      kinds: of deployments to compare; by default all that there are formulas for, `kinds_of`.
      token_budgets: of chunked prefill, tokens.

    In a closed loop (`Workload.concurrency`) goodput is the throughput with all users where the SLO
    is met, and a deployment that misses it has none.

    Raises:
      InputError: a budget that no kind can use, a rate in a closed loop, or a kind that there are
        no formulas for.
      NoFeasibleDeployment: nothing fits, meets the SLO or reaches the rate; with the reasons.
    """
    began = time.perf_counter()
    grids = grids_of(problem, budget, kinds, token_budgets, least_goodput(rate, fewest=fewest))
    result = answer_kinds(problem, grids, budget=budget, rate=rate, fewest=fewest, top=top)
    failed = absent_kinds(budget, kinds) | result.failed_kinds
    return dataclasses.replace(result, failed_kinds=failed, seconds=time.perf_counter() - began)


def kinds_of(problem: Problem) -> tuple[Kind, ...]:
    """The kinds of deployments that a question can be asked of.

    A closed loop, and the first requests into an empty system, have formulas for disaggregated
    deployments only.
    """
    if problem.workload.concurrency is not None or problem.horizon is not None:
        return ("disaggregated",)
    return ("disaggregated", "colocated", "chunked")


def grids_of(
    problem: Problem,
    budget: int,
    kinds: Sequence[Kind] | None = None,
    token_budgets: tuple[int, ...] = TOKEN_BUDGETS,
    least: float | None = None,
) -> dict[Kind, Candidates]:
    """The candidates of a budget, by kind; `least` as `grid_of` takes it.

    Raises:
      InputError: a budget that no kind can use, one with too many candidates, or a kind that there
        are no formulas for.
    """
    allowed = kinds_of(problem)
    for kind in kinds or ():
        if kind not in allowed:
            raise InputError(
                f"kind = {kind}: a closed loop and a horizon have formulas for disaggregated "
                "deployments only"
            )
    asked = list(kinds or allowed)
    if budget < 2 and "disaggregated" in asked:
        if len(asked) == 1:
            raise InputError(f"gpus = {budget}: a disaggregated deployment needs at least 2 GPUs")
        asked.remove("disaggregated")
    return {
        kind: grid_of(problem, budget, least)
        if kind == "disaggregated"
        else aggregated_grid(problem, kind, budget, token_budgets=token_budgets)
        for kind in asked
    }


def absent_kinds(budget: int, kinds: Sequence[Kind] | None) -> dict[Kind, str]:
    """Kinds that `grids_of` leaves out of a comparison of all, and why."""
    if kinds is None and budget < 2:
        return {"disaggregated": "it needs at least 2 GPUs"}
    return {}


def grid_of(problem: Problem, budget: int, least: float | None = None) -> Grid:
    """The pools of a budget; those that tables pick where there are very many.

    Args:
      problem: the question.
      budget: most GPUs over both pools.
      least: goodput from which on fewer GPUs are better, 1/s; None where more goodput is.

    Raises:
      InputError: a budget below two GPUs, or one with too many candidates.
    """
    if budget < 2:
        raise InputError(f"gpus = {budget}: a disaggregated deployment needs at least 2 GPUs")
    shapes, _ = fitting_shapes(problem, budget)
    if count_deployments(shapes, budget) <= MAX_CANDIDATES:
        return disaggregated_grid(problem, budget)
    from fluidserve.search.screen import screened_grid  # most questions do without

    return screened_grid(problem, budget, least=least)


def answer_kinds(
    problem: Problem,
    grids: dict[Kind, Candidates],
    *,
    budget: int,
    rate: float | None,
    fewest: bool = False,
    top: int,
) -> PlanResult:
    """`plan` for candidates that are there already."""
    found: dict[Kind, PlanResult] = {}
    failures: dict[Kind, NoFeasibleDeployment] = {}
    for kind, grid in grids.items():
        try:
            found[kind] = answer(problem, grid, budget=budget, rate=rate, fewest=fewest, top=top)
        except NoFeasibleDeployment as error:
            failures[kind] = error
    if not found:
        raise NoFeasibleDeployment.of_all(failures)
    least = least_goodput(rate, fewest=fewest)
    rows = [row for result in found.values() for row in result.deployments]
    order = rank(np.array([r.goodput for r in rows]), np.array([r.gpus for r in rows]), least)
    first = next(iter(found.values()))
    rejected = Counter()
    for result in found.values():
        rejected |= Counter(result.rejected)
    return dataclasses.replace(
        first,
        deployments=with_ties([rows[i] for i in order[:top]], least),
        candidates=sum(result.candidates for result in found.values())
        + sum(error.candidates for error in failures.values()),
        seconds=sum(result.seconds for result in found.values()),
        rejected=dict(rejected),
        best_of_kind={kind: result.deployments[0] for kind, result in found.items()},
        failed_kinds={kind: str(error) for kind, error in failures.items()},
    )


def answer(
    problem: Problem,
    grid: Candidates,
    *,
    budget: int,
    rate: float | None,
    fewest: bool = False,
    top: int,
) -> PlanResult:
    """`plan` for candidates of one kind."""
    _check_rate(problem, rate)
    began = time.perf_counter()
    if not len(grid):
        raise nothing_fits(problem, grid, budget)
    question = question_of(problem)
    least = least_goodput(rate, fewest=fewest)
    scores, refined = score_refined(problem, grid, question, least)
    order = rank(scores.goodput, grid.gpus, least)
    if not len(order):
        raise nothing_serves(problem, grid, question, scores, rate)
    rows = order[:top]
    rates = scores.goodput[rows] if rate is None else np.full(len(rows), rate)
    results = _results(problem, grid, question, scores, rows, rates, refined)
    return PlanResult(
        deployments=with_ties(results, least),
        candidates=len(grid),
        seconds=time.perf_counter() - began,
        budget=budget,
        rate=rate,
        rejected=dict(grid.rejected),
        concurrency=problem.workload.concurrency,
        fewest=least is not None,
        screening=_screening(grid, scores),
    )


def _screening(grid: Candidates, scores: Scores) -> Screening | None:
    """How the candidates were picked, and how far off the tables were that picked them."""
    if not isinstance(grid, Grid) or grid.screened is None:
        return None
    both = (grid.screened.goodput > 0) & (scores.goodput > 0)
    error = np.abs(grid.screened.goodput[both] / scores.goodput[both] - 1.0)
    usual, worst = np.quantile(error, [0.99, 1.0])
    return Screening(grid.screened.deployments, float(usual), float(worst))


def analyse(problem: Problem, deployment: Deployment, rate: float | None) -> DeploymentResult:
    """One deployment by the formulas, at a rate or at its goodput, or with the users of a workload.

    Raises:
      InputError: a rate in a closed loop.
      NoFeasibleDeployment: its instances do not fit, or no rate is given and none meets the SLO.
    """
    _check_rate(problem, rate)
    grid = grid_for(problem, deployment)
    if not len(grid):
        raise nothing_fits(problem, grid, deployment.gpus)
    question = question_of(problem)
    scores, refined = score_refined(problem, grid, question)
    if scores.throughput is not None:
        return _results(problem, grid, question, scores, np.array([0]), scores.throughput)[0]
    if rate is None and not scores.goodput[0] > 0:
        raise nothing_serves(problem, grid, question, scores, None)
    at = float(scores.goodput[0]) if rate is None else rate
    return _results(problem, grid, question, scores, np.array([0]), np.array([at]), refined)[0]


def score_refined(
    problem: Problem, grid: Candidates, question: Question, least: float | None = None
) -> tuple[Scores, Refinement | None]:
    """Scores after the refining tier, and what that found; None where it has no say.

    Args:
      problem: the question.
      grid: candidates.
      question: what they share.
      least: goodput from which on fewer GPUs are better, 1/s; None where more goodput is.
    """
    scores = score_grid(grid, question)
    if not isinstance(grid, AggregatedGrid) or not (scores.goodput > 0).any():
        return scores, None

    def ranked(goodput: np.ndarray) -> np.ndarray:
        enough = None if least is None else _NEARLY * least
        return rank(goodput, grid.gpus, enough)

    refined = refine(problem, grid, question, np.asarray(scores.goodput, float), ranked)
    return refined.applied(scores), refined


def at_rates(problem: Problem, row: DeploymentResult, rates: np.ndarray) -> Scores:
    """A deployment that was planned or analysed, described at some rates, 1/s.

    The rates of a refined row are scaled as its goodput was.
    """
    grid, question = grid_for(problem, row.deployment), question_of(problem)
    factor = row.refined.factor if row.refined else 1.0
    return describe_rows(grid, question, np.zeros(len(rates), int), rates / factor)


def grid_for(problem: Problem, deployment: Deployment) -> Candidates:
    """The grid of one deployment; empty where it does not fit.

    Raises:
      InputError: a kind that there are no formulas for.
    """
    if isinstance(deployment, Disaggregated):
        return disaggregated_grid(problem, deployment.gpus, only=deployment)
    if deployment.kind not in kinds_of(problem):
        raise InputError(
            f"deployment = {deployment.label}: a closed loop and a horizon have formulas for "
            "disaggregated deployments only"
        )
    return aggregated_grid(problem, deployment.kind, deployment.gpus, only=deployment)


def _check_rate(problem: Problem, rate: float | None) -> None:
    """Refuses a rate where users set the pace."""
    if rate is not None and problem.workload.concurrency is not None:
        raise InputError("rate: in a closed loop the users set the pace; leave it out")


def least_goodput(rate: float | None, *, fewest: bool) -> float | None:
    """Goodput from which on fewer GPUs are better, 1/s; None where more goodput is."""
    return _LEAST if fewest and rate is None else rate


def rank(goodput: np.ndarray, gpus: np.ndarray, least: float | None) -> np.ndarray:
    """Candidates that answer the question, best first."""
    if least is not None:
        enough = np.flatnonzero(goodput >= least)
        return enough[np.lexsort((-goodput[enough], gpus[enough]))]
    serving = np.flatnonzero(goodput > 0)
    order = serving[np.argsort(-goodput[serving], kind="stable")]
    # a class of ties starts at its largest goodput
    tie_class = np.zeros(len(order), int)
    leader, current = np.inf, -1
    for i, value in enumerate(goodput[order]):
        if value < leader * (1.0 - TIE):
            leader, current = value, current + 1
        elif current < 0:
            leader, current = value, 0
        tie_class[i] = current
    return order[np.lexsort((-goodput[order], gpus[order], tie_class))]


def with_ties(rows: list[DeploymentResult], least: float | None) -> list[DeploymentResult]:
    """Rows, best first, with those marked that cannot be told from the first."""
    return [dataclasses.replace(row, tied=_ties(rows[0], row, least)) for row in rows]


def _ties(first: DeploymentResult, other: DeploymentResult, least: float | None) -> bool:
    """Whether a row cannot be told from the first one."""
    if least is not None and other.gpus != first.gpus:
        return False
    low, high = sorted((first.goodput, other.goodput))
    return low >= high * (1.0 - TIE)


def _results(
    problem: Problem,
    grid: Candidates,
    question: Question,
    scores: Scores,
    rows: np.ndarray,
    rates: np.ndarray,
    refined: Refinement | None = None,
) -> list[DeploymentResult]:
    """Collects what is known of some candidates, described at `rates`, 1/s.

    Where candidates were refined, the formulas' rates are scaled by what that found: they tell of
    the load, and the factor says which rate is that load.
    """
    factor = np.ones(len(rows)) if refined is None else refined.factor[rows]
    described = describe_rows(grid, question, rows, rates / factor)
    left = after_one_failure(grid, question, rows) * factor
    results = [
        _result(problem, grid, scores, described, (int(row), i), float(rates[i]), float(left[i]))
        for i, row in enumerate(rows)
    ]
    if refined is None:
        return results
    return [
        dataclasses.replace(result, refined=refined.of(int(row)))
        for result, row in zip(results, rows, strict=True)
    ]


def _result(
    problem: Problem,
    grid: Candidates,
    scores: Scores,
    described: Scores,
    at: tuple[int, int],
    rate: float,
    after_failure: float,
) -> DeploymentResult:
    """Collects the numbers of one candidate: its row of the grid, its position among described."""
    row, position = at
    metrics, found = described.asked, described.latencies
    shares = {limit.metric: limit.share for limit in limits_of(problem.slo)}

    def latency(metric: str) -> Latency:
        mean, quantiles = getattr(found, f"{metric}_mean"), getattr(found, metric)
        p50, p90, p99, *other = (float(q[position]) for q in quantiles)
        own = other[0] if shares.get(metric) is not None else None
        return Latency(mean=float(mean[position]), p50=p50, p90=p90, p99=p99, at_share=own)

    doubts = int(scores.doubts[row])
    loads = (metrics.prefill_load, metrics.link_load, metrics.decode_load)
    # the first requests of an overload are a plain answer
    if problem.horizon is None and any(not load[position] < 1.0 for load in loads):
        doubts |= Doubt.UNSTABLE
    return DeploymentResult(
        deployment=grid.deployment(row),
        kind=grid.deployment(row).kind,
        goodput=float(scores.goodput[row]),
        rate=rate,
        ttft=latency("ttft"),
        tpot=latency("tpot"),
        e2e=None if found.e2e is None else latency("e2e"),
        itl=None if found.itl is None or single_tokens(problem) else latency("itl"),
        attainment=float(metrics.attainment[position]),
        prefill_load=float(metrics.prefill_load[position]),
        link_load=float(metrics.link_load[position]),
        decode_load=float(metrics.decode_load[position]),
        batch=float(metrics.batch[position]),
        kv_use=float(metrics.kv_use[position]),
        phases=Phases(*(float(time[position]) for time in found.phases)),
        after_one_failure=after_failure,
        binding=Binding(int(scores.binding[row])).label,
        confidence=confidence_level(doubts),
        reasons=tuple(doubt_sentences(doubts)),
        concurrency=problem.workload.concurrency,
        output_token_rate=rate * problem.mean_lengths[1],
    )
