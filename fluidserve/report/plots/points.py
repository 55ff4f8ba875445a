"""The numbers behind the pictures: formulas over loads and rates, simulated runs, the roofline."""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from fluidserve.deploy.latency import quantile_of
from fluidserve.eventsim import simulate
from fluidserve.eventsim.records import Records
from fluidserve.problem import Problem
from fluidserve.results import DeploymentResult
from fluidserve.search.aggregated import Candidates
from fluidserve.search.plan import at_rates, score_refined
from fluidserve.search.score import describe_rows, question_of
from fluidserve.specs.deployment import Deployment, Pool
from fluidserve.timing.intensity import arithmetic_intensity
from fluidserve.timing.interference import iteration_time
from fluidserve.timing.model import Work
from fluidserve.verify.crosscheck import stretch
from fluidserve.verify.served import serve

LOADS = (0.3, 0.5, 0.7, 0.85, 0.95, 1.0)
"""Shares of its own goodput at which a deployment is a point of the trade-off."""
_CANDIDATES = 600
_RATES = 60
_BEYOND = 1.25
_MOST_PROMPT_TOKENS, _PIECES = 2048, 65
_SIMULATED = (0.4, 0.7, 0.85, 0.95, 1.0, 1.05, 1.15)


@dataclasses.dataclass(frozen=True)
class Tradeoff:
    """Deployments at several loads; arrays of one length.

    Attributes:
      throughput: requests/s per GPU.
      ttft: TTFT at the percentile of its limit, s.
      tpot: the same of TPOT, s.
      meets: whether the SLO is met.
      gpus: GPUs of the deployment.
      labels: deployment of each point.
    """

    throughput: np.ndarray
    ttft: np.ndarray
    tpot: np.ndarray
    meets: np.ndarray
    gpus: np.ndarray
    labels: list[str]


@dataclasses.dataclass(frozen=True)
class Curve:
    """A deployment over the arrival rate, 1/s, by the formulas.

    TTFT and TPOT are those at the percentiles of their limits, s.
    """

    rate: np.ndarray
    attainment: np.ndarray
    ttft: np.ndarray
    tpot: np.ndarray


@dataclasses.dataclass(frozen=True)
class Runs:
    """Simulated attainment over the arrival rate, 1/s, with 95 % intervals."""

    rate: np.ndarray
    attainment: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclasses.dataclass(frozen=True)
class RooflinePoint:
    """A pass of one instance.

    Attributes:
      phase: ``prefill`` or ``decode``.
      name: what the pass holds.
      intensity: FLOP over bytes of weights and KV.
      achieved: FLOP/s of one GPU while it computes.
    """

    phase: str
    name: str
    intensity: float
    achieved: float


@dataclasses.dataclass(frozen=True)
class Interference:
    """Iterations of one instance that hold decode and prompt tokens.

    Attributes:
      tokens: prompt tokens in the iteration, (n,); the first is 0.
      batches: decoding requests.
      times: time of the iteration, s, (batches, n).
      context: tokens of each decoding request.
    """

    tokens: np.ndarray
    batches: tuple[int, ...]
    times: np.ndarray
    context: float


def tradeoff(problem: Problem, grids: Iterable[Candidates]) -> Tradeoff:
    """The better candidates of each kind at `LOADS` of their goodput.

    Of each kind those with most goodput per GPU are taken, at most 600; of budgets that are
    screened, those of the deployments that a plan scores.
    """
    parts = [_at_loads(problem, grid) for grid in grids]
    return Tradeoff(
        labels=[label for part in parts for label in part.labels],
        **{
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("throughput", "ttft", "tpot", "meets", "gpus")
        },
    )


def _at_loads(problem: Problem, grid: Candidates) -> Tradeoff:
    """The better candidates of one kind."""
    question = question_of(problem)
    if not len(grid):
        nothing = np.empty(0)
        return Tradeoff(nothing, nothing, nothing, nothing.astype(bool), nothing.astype(int), [])
    scores, refined = score_refined(problem, grid, question)
    goodput = scores.goodput
    serving = np.flatnonzero(goodput > 0)
    per_gpu = goodput[serving] / grid.gpus[serving]
    rows = serving[np.argsort(-per_gpu, kind="stable")][:_CANDIDATES]
    rates = np.outer(LOADS, goodput[rows]).ravel()
    every = np.tile(rows, len(LOADS))
    factor = 1.0 if refined is None else refined.factor[every]
    found = describe_rows(grid, question, every, rates / factor)
    return Tradeoff(
        throughput=rates / grid.gpus[every],
        ttft=found.latencies.ttft[quantile_of(problem.slo, "ttft")[0]],
        tpot=found.latencies.tpot[quantile_of(problem.slo, "tpot")[0]],
        meets=found.asked.excess >= -1e-3,
        gpus=grid.gpus[every],
        labels=[grid.deployment(int(i)).label for i in every],
    )


def pareto_front(cost: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Points that no other beats in both, as indices in the order of rising cost.

    Args:
      cost: the smaller the better.
      value: the larger the better, same shape ``(n,)``.

    Example:
      >>> pareto_front(np.array([1.0, 2.0, 3.0]), np.array([5.0, 4.0, 9.0])).tolist()
      [0, 2]
    """
    order = np.lexsort((-value, cost))
    best = np.maximum.accumulate(np.concatenate([[-np.inf], value[order][:-1]]))
    return order[value[order] > best]


def curve(problem: Problem, row: DeploymentResult, goodput: float) -> Curve:
    """A deployment from an idle system to a quarter beyond a goodput, 1/s."""
    rates = np.linspace(0.02, _BEYOND, _RATES) * goodput
    found = at_rates(problem, row, rates)
    return Curve(
        rate=rates,
        attainment=found.asked.attainment,
        ttft=found.latencies.ttft[quantile_of(problem.slo, "ttft")[0]],
        tpot=found.latencies.tpot[quantile_of(problem.slo, "tpot")[0]],
    )


def simulated_curve(
    problem: Problem, deployment: Deployment, goodput: float, requests: int
) -> Runs:
    """Simulated at each of several rates around the goodput, 1/s."""
    rates = np.array(_SIMULATED) * goodput
    shares = [
        serve(problem, deployment, float(rate), requests=requests, seed=i).summary.attainment
        for i, rate in enumerate(rates)
    ]
    return Runs(
        rate=rates,
        attainment=np.array([s.value for s in shares]),
        low=np.array([s.low for s in shares]),
        high=np.array([s.high for s in shares]),
    )


def interference(problem: Problem, pool: Pool, batches: Sequence[int]) -> Interference:
    """Iterations of an instance with decode batches of the mean context and pieces of prompts."""
    prompt, n_out = problem.mean_lengths
    context = prompt + 0.5 * (n_out - 1.0)
    instance = problem.instance(pool.tp, pool.pp)
    tokens = np.linspace(0.0, _MOST_PROMPT_TOKENS, _PIECES)
    times = [
        [float(iteration_time(instance, float(n), context, float(c))) for c in tokens]
        for n in batches
    ]
    return Interference(tokens, tuple(batches), np.array(times), context)


def sample_run(problem: Problem, deployment: Deployment, rate: float, requests: int) -> Records:
    """Requests of a simulated run with the times between their tokens.

    Of a horizon, its first requests; else those of steady state among `requests`.
    """
    system, count = problem.system(deployment), problem.horizon or requests
    workload = stretch(problem.workload, count)
    records = simulate(system, workload, rate, requests=count, seed=0, record_gaps=True)
    return records.window() if problem.horizon is None else records


def typical_requests(records: Records, levels: Sequence[float] = (0.5, 0.9, 0.99)) -> list[int]:
    """Requests whose TTFT lies at the given quantiles, among those with several tokens."""
    several = np.flatnonzero(records.n_out > 1)
    order = several[np.argsort(records.ttft[several], kind="stable")]
    return [int(order[min(int(level * len(order)), len(order) - 1)]) for level in levels]


def roofline_points(problem: Problem, deployment: Deployment, batch: float) -> list[RooflinePoint]:
    """Prefill of the mean prompt, and decode steps of one request and of the plan's batch.

    Args:
      problem: the question.
      deployment: its pools.
      batch: requests in decode per instance.
    """
    prompt, n_out = problem.mean_lengths
    context = prompt + 0.5 * (n_out - 1.0)
    pools = list(deployment.pools.values())
    lane = max(batch / pools[-1].pp, 1.0)
    whole = problem.instance(1, 1)  # nominal counts: no KV head is stored twice
    inside = context if whole.kv is None else min(context, float(whole.kv.window))

    def steps(requests: float) -> Work:
        return whole.decode_work(requests, requests * context, requests * inside)

    passes = [
        ("prefill", f"prompt of {prompt:,.0f}", pools[0], whole.prefill_work(prompt)),
        ("decode", "one request", pools[-1], steps(1.0)),
        ("decode", f"batch of {lane:,.0f}", pools[-1], steps(lane)),
    ]
    points = []
    for phase, name, pool, work in passes:
        flop, moved = _flop_and_bytes(problem, work)
        instance = problem.instance(pool.tp, pool.pp)
        time = float(instance.pp * instance.times.stage_time(work))
        points.append(RooflinePoint(phase, name, flop / moved, flop / (time * pool.tp)))
    return points


def _flop_and_bytes(problem: Problem, work: Work) -> tuple[float, float]:
    """Nominal FLOP and bytes of a pass of the whole model."""
    model = problem.model
    flop = float(model.flop_per_token * work.new + model.attention_flop * work.attended)
    return flop, flop / float(arithmetic_intensity(model, work))
