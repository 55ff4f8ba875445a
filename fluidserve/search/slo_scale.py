"""The SLO scale: by which factor all limits of a promise can be tightened at a given rate.

DistServe (Zhong et al., OSDI 2024, section 6.2) asks this of systems at a fixed rate per GPU: the
smaller the factor, the stricter the promises that a deployment can give. The state of a deployment
does not depend on the promise, so it is computed once, and only the promise is searched: by the
root search that also finds goodput, over the logarithm of the factor.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fluidserve.deploy.aggregated import (
    AggregatedPlan,
    aggregated_at,
    aggregated_metrics,
    largest_aggregated_rate,
)
from fluidserve.deploy.disaggregated import Metrics, Plan, at_rate, largest_rate, metrics_of
from fluidserve.deploy.promise import scaled
from fluidserve.errors import InputError
from fluidserve.goodput import root_rate
from fluidserve.search import aggregated, score
from fluidserve.search.aggregated import AggregatedGrid, AggregatedPicks
from fluidserve.search.grid import Grid
from fluidserve.search.score import Picks, Question, replica_bound
from fluidserve.specs.deployment import KvPolicy
from fluidserve.timing.instance import Instance

LOOSEST, TIGHTEST = 64.0, 1.0 / 64.0
"""Factors between which is searched."""


@functools.singledispatch
def slo_scales(
    grid: Grid, question: Question, rates: Float[np.ndarray, "c"]
) -> Float[np.ndarray, "c"]:
    """Least factor on all limits with which each candidate keeps the promise at its rate.

    Args:
      grid: candidates, not empty.
      question: what they share.
      rates: one for each candidate, 1/s.

    Returns:
      the factors, between `TIGHTEST` and `LOOSEST`; ``inf`` where a rate cannot be carried or even
      `LOOSEST` does not help.

    Raises:
      InputError: a closed loop or a horizon, for which nothing is searched.
    """
    _steady(question)
    arrays = score.program_arrays(grid, question, np.arange(len(grid)), rates)
    found = _of_pools(*arrays, len(grid), max_replicas=replica_bound(grid))
    return np.asarray(found)[: len(grid)]


@slo_scales.register(AggregatedGrid)
def _of_aggregated(grid: AggregatedGrid, question: Question, rates: np.ndarray) -> np.ndarray:
    _steady(question)
    every = np.arange(len(grid))
    arrays = aggregated.program_arrays(grid, question, every, rates, room=len(grid))
    found = _of_instances(*arrays, len(grid), kv_policy=grid.kv_policy)
    return np.asarray(found)[: len(grid)]


def _steady(question: Question) -> None:
    if question.users is not None or question.horizon is not None:
        raise InputError("slo scale: it is searched in steady state at an arrival rate")


@functools.partial(jax.jit, static_argnames=("max_replicas",))
def _of_pools(
    question: Question, shapes: Instance, picks: Picks, count: Array, *, max_replicas: int
) -> Array:
    """`slo_scales` of disaggregated candidates."""

    def least(plan: Plan, rate: Array) -> Array:
        state = at_rate(plan, rate, max_replicas=max_replicas)
        upper = functools.reduce(jnp.minimum, largest_rate(plan))

        def under(factor: Array) -> Metrics:
            return metrics_of(plan, scaled(question.slo, factor), rate, state)

        return _least_factor(under, rate, upper)

    return score.over_plans(least, question, shapes, picks, count)


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
    """`slo_scales` of colocated and chunked candidates."""

    def least(plan: AggregatedPlan, rate: Array) -> Array:
        state = aggregated_at(plan, rate)

        def under(factor: Array) -> Metrics:
            return aggregated_metrics(plan, scaled(question.slo, factor), state)

        return _least_factor(under, rate, largest_aggregated_rate(plan))

    return aggregated.over_plans(least, question, shapes, picks, prefill_tokens, count, kv_policy)


def _least_factor(under: Callable[[Array], Metrics], rate: Array, upper: Array) -> Array:
    """The least factor that keeps the promise, by the search over how tight it is, from 0 to 1."""
    span = jnp.log(TIGHTEST / LOOSEST)

    def excess(tightness: Array, _) -> Array:
        return under(LOOSEST * jnp.exp(span * tightness)).excess

    tightness, _ = root_rate(excess, lambda x: x, 0.0, jnp.ones_like(rate))
    found = LOOSEST * jnp.exp(span * tightness)
    return jnp.where((tightness > 0.0) & (rate < upper), found, jnp.inf)
