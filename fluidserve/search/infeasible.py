"""Why no deployment answers a question: reasons counted, and the candidate that comes closest."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from fluidserve.deploy.latency import Latencies, quantile_of
from fluidserve.errors import NoFeasibleDeployment
from fluidserve.problem import Problem
from fluidserve.search.aggregated import Candidates
from fluidserve.search.grid import Grid, smallest_fit
from fluidserve.search.score import Question, Scores, describe_rows, question_of
from fluidserve.specs.deployment import Kind
from fluidserve.specs.slo import Slo, joint_limits, limits_of
from fluidserve.status import Binding
from fluidserve.units import format_time

_VANISHING = 1e-3


def nothing_fits(problem: Problem, grid: Candidates, budget: int) -> NoFeasibleDeployment:
    """Why no instance fits, and how many GPUs would do."""
    fit, twice = smallest_fit(problem), isinstance(grid, Grid)
    name, gpu = problem.model.name, problem.gpu.name
    if fit is None:
        nearest = f"{name} does not fit on {gpu} at any tp and pp tried"
    else:
        nearest = f"an instance of {name} needs {fit.gpus} {gpu} (tp{fit.tp} pp{fit.pp})"
        if twice:
            nearest += f", a prefill and a decode instance {2 * fit.gpus} GPUs"
        nearest += f"; the budget is {budget}"
    reasons = dict(grid.rejected) or {"an instance takes more GPUs than the budget leaves": 1}
    return NoFeasibleDeployment(
        f"{name} does not fit {'twice ' * twice}into {budget} {gpu}",
        reasons=reasons,
        nearest=nearest,
    )


def no_kind_fits(
    problem: Problem, grids: Mapping[Kind, Candidates], budget: int
) -> NoFeasibleDeployment:
    """Why no kind has a candidate."""
    return NoFeasibleDeployment.of_all(
        {kind: nothing_fits(problem, grid, budget) for kind, grid in grids.items()}
    )


def nothing_serves(
    problem: Problem, grid: Candidates, question: Question, scores: Scores, rate: float | None
) -> NoFeasibleDeployment:
    """Why no candidate meets the SLO or reaches the rate, and what comes closest."""
    if scores.throughput is not None:
        return _too_many_users(problem, grid, question, scores)
    best = int(np.argmax(scores.goodput))
    if rate is not None and scores.goodput[best] > 0:
        short = scores.goodput > 0
        loads = scores.metrics
        tightest = loads.link_load >= np.maximum(loads.prefill_load, loads.decode_load)
        # its load is in proportion to the rate: above 1 at the rate asked for
        link = short & tightest & (rate * loads.link_load > scores.goodput)
        counts = {
            "the KV link saturates below the rate": int(link.sum()),
            "goodput below the rate": int((short & ~link).sum()),
        }
        reasons = Counter({reason: count for reason, count in counts.items() if count})
        reasons.update(_unreachable(scores, ~short))
        nearest = f"{grid.deployment(best).label} serves {scores.goodput[best]:.3g} requests/s"
        message = f"no deployment of at most {int(grid.gpus.max())} GPUs serves {rate:g} requests/s"
        return NoFeasibleDeployment(
            message, reasons=dict(reasons), nearest=nearest, candidates=len(grid)
        )
    closest, told = _closest_idle(problem, grid)
    share = _share_told(problem.slo, float(scores.metrics.attainment[closest]))
    nearest = f"{grid.deployment(closest).label}, idle: {told}{share}"
    return NoFeasibleDeployment(
        "no deployment meets the SLO, however little traffic there is",
        reasons=_unreachable(scores, np.ones(len(grid), bool)),
        nearest=nearest,
        candidates=len(grid),
    )


def _too_many_users(
    problem: Problem, grid: Candidates, question: Question, scores: Scores
) -> NoFeasibleDeployment:
    """Which limit the candidates miss with all users, and which comes closest."""
    excess = np.round(scores.metrics.excess, 3)
    best = int(np.lexsort((np.asarray(scores.throughput), excess))[-1])
    rates = np.asarray(scores.throughput)[[best]]
    found = describe_rows(grid, question, np.array([best]), rates).latencies
    missed = Counter(Binding(int(b)).label for b in scores.binding)
    told = _latencies_told(problem.slo, _at_limits(problem, found), 0)
    share = _share_told(problem.slo, float(scores.metrics.attainment[best]))
    users = problem.workload.concurrency
    return NoFeasibleDeployment(
        f"no deployment of at most {int(grid.gpus.max())} GPUs meets the SLO with {users} users in "
        "a closed loop",
        reasons={f"{label.upper()} is missed": n for label, n in missed.most_common()},
        nearest=f"{grid.deployment(best).label}: {told}{share}",
        candidates=len(grid),
    )


def _closest_idle(problem: Problem, grid: Candidates) -> tuple[int, str]:
    """The candidate whose latencies, without traffic, come closest to the limits; with them.

    Idle latencies depend on the shapes alone, so one candidate stands for each pair of shapes.
    """
    _, rows = np.unique(grid.alike, return_index=True)
    idle = np.full(len(rows), _VANISHING / float(problem.bins.longest))
    found = describe_rows(grid, question_of(problem), rows, idle).latencies
    times = _at_limits(problem, found)
    limits = np.array([limit.time for limit in limits_of(problem.slo)])
    best = int(np.argmin((times / limits[:, None]).max(axis=0)))
    return int(rows[best]), _latencies_told(problem.slo, times, best)


def single_tokens(problem: Problem) -> bool:
    """Whether no request has a second token."""
    return float(problem.bins.out_share[0]) > 0.999


def _at_limits(problem: Problem, found: Latencies) -> np.ndarray:
    """The latency that each limit is on, at its `quantile_of`, (limits, candidates), s."""
    # with a single output token there is no TPOT and no gap to miss
    single = single_tokens(problem)
    return np.array(
        [
            0.0 * found.ttft[0]
            if single and limit.metric in ("tpot", "itl")
            else getattr(found, limit.metric)[quantile_of(problem.slo, limit.metric)[0]]
            for limit in limits_of(problem.slo)
        ]
    )


def _latencies_told(slo: Slo, times: np.ndarray, position: int) -> str:
    """The latencies of one candidate out of `_at_limits`, in words."""
    names = [f"{quantile_of(slo, metric)[1]} {metric.upper()}" for metric, *_ in limits_of(slo)]
    return ", ".join(
        f"{name} {format_time(float(time[position]))}"
        for name, time in zip(names, times, strict=True)
    )


def _share_told(slo: Slo, share: float) -> str:
    """How many requests meet the joint limits; nothing where there is none."""
    joint = joint_limits(slo)
    if not joint:
        return ""
    one = f"the {joint[0].metric.upper()} limit"
    return f", {share:.0%} of the requests meet {(one, 'both', 'all three')[len(joint) - 1]}"


def _unreachable(scores: Scores, where: np.ndarray) -> dict[str, int]:
    """How many candidates cannot meet a limit even when idle, by limit."""
    counts = Counter(Binding(int(b)).label for b in scores.binding[where])
    return {f"{label.replace('_', ' ')}": count for label, count in counts.most_common()}
