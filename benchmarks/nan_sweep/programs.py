"""What is computed of the candidates: a compiled program for each kind of question."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fluidserve.deploy import aggregated_latency as _registers_latencies  # noqa: F401
from fluidserve.deploy.aggregated import (
    AggregatedPlan,
    aggregated_at,
    aggregated_metrics,
    largest_aggregated_rate,
    prepare_aggregated,
)
from fluidserve.deploy.closed_loop import closed_state
from fluidserve.deploy.disaggregated import (
    Plan,
    at_rate,
    evaluate,
    largest_rate,
    metrics_of,
    prepare,
)
from fluidserve.deploy.early import early_metrics, early_state
from fluidserve.deploy.latency import latencies
from fluidserve.goodput import largest_meeting
from fluidserve.specs.deployment import Dispatch
from fluidserve.specs.slo import Slo
from fluidserve.timing.profile import FirstToken

LARGEST_POOL = 64


@dataclasses.dataclass(frozen=True)
class Program:
    """One kind of question.

    Attributes:
      name: for the table.
      answer: metrics of a plan under a promise, given a rate over the saturating one, that rate in
        1/s, and a count.
      part: candidates, as a share of all.
      profile: of the step times.
      first_token: where the first token leaves.
      dispatch: how requests are spread.
      prefill_batch: most prompts in a pass.
      windows: whether the models have sliding windows or the like, and prompts a cached prefix.
      e2e: whether there is a limit on end-to-end latency, and percentiles for each limit.
      together: how instances do both phases; empty where they do one.
    """

    name: str
    answer: Callable[..., Any]
    part: float
    profile: str = "default"
    first_token: FirstToken = "prefill"
    dispatch: Dispatch = "shared"
    prefill_batch: int = 1
    windows: bool = False
    e2e: bool = False
    together: Literal["", "prompts first", "chunked"] = ""


def at_a_rate(plan: Plan | AggregatedPlan, slo: Slo, share: Any, upper: Any, count: Any) -> Any:
    """Metrics and mean latencies at a rate."""
    rate = share * upper
    if isinstance(plan, AggregatedPlan):
        together = aggregated_at(plan, rate)
        return aggregated_metrics(plan, slo, together), latencies(plan, together, 0, slo)
    state = at_rate(plan, rate, max_replicas=LARGEST_POOL)
    return metrics_of(plan, slo, rate, state), latencies(plan, state, 0, slo)


def goodput(plan: Plan, slo: Slo, share: Any, upper: Any, count: Any) -> Any:
    """Goodput, whose derivatives come from the implicit function theorem."""

    def attainment(rate: Any) -> Any:
        return evaluate(plan, slo, rate, max_replicas=LARGEST_POOL).attainment

    return largest_meeting(attainment, slo.attainment, upper)


def first_requests(plan: Plan, slo: Slo, share: Any, upper: Any, count: Any) -> Any:
    """Metrics over the first requests."""
    plan, rate = dataclasses.replace(plan, horizon=count), share * upper
    return early_metrics(plan, slo, rate, early_state(plan, rate, max_replicas=LARGEST_POOL))


def closed_loop(plan: Plan, slo: Slo, share: Any, upper: Any, count: Any) -> Any:
    """Throughput, metrics and mean latencies with a number of users."""
    state, rate = closed_state(plan, count, max_replicas=LARGEST_POOL)
    return rate, metrics_of(plan, slo, rate, state), latencies(plan, state, 0, slo)


PROGRAMS = (
    Program("paper, first token from prefill", at_a_rate, 0.19, profile="paper"),
    Program(
        "paper, first token from decode", at_a_rate, 0.19, profile="paper", first_token="decode"
    ),
    Program("default, first token from prefill", at_a_rate, 0.19),
    Program("default, first token from decode", at_a_rate, 0.19, first_token="decode"),
    Program("sliding windows, prefix cache", at_a_rate, 0.05, windows=True, first_token="decode"),
    Program("end to end, percentiles", at_a_rate, 0.02, e2e=True, first_token="decode"),
    Program("prefill batches", at_a_rate, 0.03, prefill_batch=32),
    Program("shortest queue", at_a_rate, 0.03, dispatch="jsq", first_token="decode"),
    Program("round robin", at_a_rate, 0.03, dispatch="round-robin"),
    Program("random", at_a_rate, 0.01, dispatch="random"),
    Program("goodput", goodput, 0.01, first_token="decode"),
    Program("first requests", first_requests, 0.01, first_token="decode"),
    Program("closed loop", closed_loop, 0.01),
    Program("colocated", at_a_rate, 0.02, together="prompts first"),
    Program("chunked", at_a_rate, 0.02, together="chunked"),
)


def compiled(program: Program, **jit_options: Any) -> Callable[..., Any]:
    """Values of a chunk of candidates, and derivatives of their sum by all that a user can set.

    Lengths are shared by a chunk, so that their derivatives are sums over it.
    """

    def answer(system: Any, bins: Any, slo: Slo, arrival_scv: Any, share: Any, count: Any) -> Any:
        if program.together:
            plan = prepare_aggregated(system, bins, arrival_scv)
            upper = largest_aggregated_rate(plan)
        else:
            plan = prepare(system, bins, arrival_scv)
            upper = functools.reduce(jnp.minimum, largest_rate(plan))
        found = program.answer(plan, slo, share, upper, count)
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(found)), found

    slopes = jax.value_and_grad(answer, argnums=(0, 1, 2, 3, 4), has_aux=True)

    def both(case: Any) -> Any:
        (_, values), found = slopes(*case)
        names = ("system", "lengths", "slo", "arrival_scv", "share")
        return {"value": values, "slope": dict(zip(names, found, strict=True))}

    return jax.jit(both, **jit_options)
