"""What is said of a deployment in a closed loop: throughput, what limits it, and doubts."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf
from fluidserve.deploy.binding import missed_metric, of_metric
from fluidserve.deploy.closed_loop import closed_state
from fluidserve.deploy.confidence import doubt_bits
from fluidserve.deploy.disaggregated import Metrics, Plan, State, largest_rate, metrics_of
from fluidserve.deploy.latency import Latencies, latencies
from fluidserve.deploy.promise import scaled
from fluidserve.queueing.mgn import MAX_SERVERS
from fluidserve.specs.slo import Slo
from fluidserve.status import Binding, Doubt

CLOSE = 0.03
"""How far the limits are moved to see whether the answer to the SLO hangs on it."""

_FULL = 0.98
_MANY_WAIT = 0.1
_ALIKE = 0.05**2


@pytree
class ClosedScore:
    """A deployment with a number of users; every leaf has the shape of the candidates.

    Attributes:
      throughput: requests completed, 1/s.
      goodput: the same where the SLO is met, else 0.
      metrics: attainment and loads.
      binding: a `Binding`.
      doubts: bits of `Doubt`.
      latencies: TTFT and TPOT.
    """

    throughput: Leaf
    goodput: Leaf
    metrics: Metrics
    binding: Leaf
    doubts: Leaf
    latencies: Latencies


def closed_score(
    plan: Plan,
    slo: Slo,
    users: Float[Array, "..."],
    quantile_steps: Leaf,
    *,
    max_replicas: int = MAX_SERVERS,
) -> ClosedScore:
    """Evaluates a deployment with `users` requests in it at any time.

    Args:
      plan: the deployment.
      slo: the promise.
      users: how many.
      quantile_steps: bisections of each latency quantile; 0 leaves them out.
      max_replicas: largest number of prefill instances.
    """
    state, rate = closed_state(plan, users, max_replicas=max_replicas)
    metrics = metrics_of(plan, slo, rate, state)
    met = metrics.excess >= 0.0
    return ClosedScore(
        throughput=rate,
        goodput=jnp.where(met, rate, 0.0),
        metrics=metrics,
        binding=_binding(plan, slo, metrics, rate, met),
        doubts=_doubts(plan, slo, state, metrics, rate, met),
        latencies=latencies(plan, state, quantile_steps, slo),
    )


def _binding(plan: Plan, slo: Slo, metrics: Metrics, rate, met) -> Int[Array, "*c"]:
    """What keeps throughput from being higher, or else which limit more requests miss.

    A stage at 98% of what it can do binds, and so do slots for which more than half of the requests
    wait. Where nothing is full, the number of users is what limits.
    """
    prefill, link, _ = largest_rate(plan)
    found = jnp.where(metrics.slot_waits > 0.5, Binding.DECODE_SLOTS, Binding.USERS)
    found = jnp.where(rate > _FULL * link, Binding.LINK, found)
    found = jnp.where(rate > _FULL * prefill, Binding.PREFILL_CAPACITY, found)
    metric = missed_metric(plan.bins, slo, metrics)
    missed = of_metric(metric, slo, Binding.TTFT, Binding.TPOT, Binding.E2E, Binding.ITL)
    return jnp.where(met, found, missed).astype(jnp.int32)


def _doubts(plan: Plan, slo: Slo, state: State, metrics: Metrics, rate, met) -> Int[Array, "*c"]:
    """Bits of `Doubt`; the thresholds come from comparisons with the event simulator."""

    def attained(factor):
        return metrics_of(plan, scaled(slo, factor), rate, state).excess >= 0.0

    raised = {
        Doubt.ALIKE: plan.lengths.steps_scv < _ALIKE,
        Doubt.SLOT_WAIT: metrics.slot_waits > _MANY_WAIT,
        Doubt.CLOSE_LIMITS: jnp.where(met, ~attained(1.0 - CLOSE), attained(1.0 + CLOSE)),
        Doubt.FEW_SLOTS: state.decode.slots < 10.0,
        Doubt.BUSY_LINK: metrics.link_load > 0.6,
        Doubt.FULL_LINK: metrics.link_load > 0.9,
        Doubt.OTHER_PREFILL: plan.system.prefill_batch > 1 or plan.system.dispatch != "shared",
    }
    return doubt_bits(raised, jnp.shape(rate))
