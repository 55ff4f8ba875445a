"""What limits an aggregated deployment, and where its formulas are known to fail."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fluidserve.deploy.aggregated import AggregatedPlan
from fluidserve.deploy.binding import UNREACHABLE, missed_metric, of_metric
from fluidserve.deploy.confidence import common_doubts, doubt_bits
from fluidserve.deploy.disaggregated import Metrics
from fluidserve.specs.slo import Slo
from fluidserve.stages.decode import slots
from fluidserve.status import Binding, Doubt


def aggregated_binding(
    goodput: Float[Array, "*c"],
    metrics: Metrics,
    upper: Float[Array, "*c"],
    plan: AggregatedPlan,
    slo: Slo,
) -> Int[Array, "*c"]:
    """What keeps goodput from being higher, as a `Binding`.

    At 99.5% of the rate that saturates the instances, they do. Slots bind where more than half of
    the misses of TTFT wait for one.

    Args:
      goodput: the goodput, 1/s; 0 when the SLO cannot be met.
      metrics: the deployment at that rate, or at a vanishing rate.
      upper: rate that saturates it, 1/s.
      plan: the deployment.
      slo: the promise.
    """
    metric = missed_metric(plan.bins, slo, metrics)
    waiting = metrics.slot_waits > 0.5 * (1.0 - metrics.ttft_attainment)
    by_ttft = jnp.where(waiting, Binding.DECODE_SLOTS, Binding.TTFT)
    found = of_metric(metric, slo, by_ttft, Binding.TPOT, Binding.E2E, Binding.ITL)
    found = jnp.where(goodput > 0.995 * upper, Binding.CAPACITY, found)
    unreachable = of_metric(metric, slo, *UNREACHABLE)
    return jnp.where(goodput > 0.0, found, unreachable).astype(jnp.int32)


def aggregated_doubts(
    plan: AggregatedPlan, slo: Slo, metrics: Metrics, slower: Array, tighter: Array
) -> Int[Array, "*c"]:
    """Bits of `Doubt` about a deployment at its goodput; as `fluidserve.deploy.confidence`.

    Args:
      plan: the deployment.
      slo: the promise.
      metrics: the deployment at its goodput.
      slower: `Metrics.excess` at ``1 - NUDGE`` of that rate.
      tighter: the same at that rate under limits of ``1 - NUDGE`` of the promise.
    """
    system, bins = plan.system, plan.bins
    share = jnp.reshape(bins.in_share, (-1, *([1] * jnp.ndim(metrics.batch))))
    never = jnp.sum(share * (plan.prefill.high * plan.prefill.pp > slo.ttft), axis=0)
    held = slots(system.instance, plan.lengths, system.max_batch, jnp.zeros_like(metrics.batch))
    raised = common_doubts(plan.arrival_scv, plan.dispersion, held, metrics, slower, tighter) | {
        Doubt.SCREENED: system.instance.pp <= 1.0,
        Doubt.BUBBLES: system.instance.pp > 1.0,
        Doubt.LENGTH_TAIL: never > 0.06,
        Doubt.TIGHT_TTFT: slo.ttft < 1.5 * plan.prefill.mean * plan.prefill.pp,
    }
    return doubt_bits(raised, jnp.shape(metrics.batch))
