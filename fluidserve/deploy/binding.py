"""What keeps a deployment from a higher goodput: a saturated stage, memory, or a limit."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fluidserve._typing import Leaf
from fluidserve.deploy.disaggregated import Metrics, Plan
from fluidserve.deploy.promise import attainments, has_shares, most_pressing
from fluidserve.specs.lengths import LengthBins
from fluidserve.specs.slo import Slo
from fluidserve.status import Binding


def binding_of(
    goodput: Float[Array, "*c"],
    metrics: Metrics,
    limits: tuple[Float[Array, "*c"], ...],
    plan: Plan,
    slo: Slo,
) -> Int[Array, "*c"]:
    """What keeps goodput from being higher, as a `Binding`.

    At 99.5% of the rate that saturates a stage, that stage binds. Otherwise it is the metric whose
    constraint holds most barely; of the joint limits, the metric that more requests miss. Slots
    bind where more than half of the misses of TPOT wait for one.

    Args:
      goodput: the goodput, 1/s; 0 when the SLO cannot be met.
      metrics: the deployment at that rate, or at a vanishing rate.
      limits: rates that saturate prefill, link and decode, 1/s.
      plan: the deployment.
      slo: the promise.
    """
    prefill, link, decode = limits
    misses_ttft = 1.0 - metrics.ttft_attainment
    misses_tpot = 1.0 - metrics.tpot_attainment
    misses = misses_ttft + misses_tpot
    if slo.e2e is not None:
        misses = misses + 1.0 - metrics.e2e_attainment
    metric = missed_metric(plan.bins, slo, metrics)
    waiting = metrics.slot_waits > 0.5 * misses_tpot
    by_tpot = jnp.where(waiting, Binding.DECODE_SLOTS, Binding.TPOT)
    found = of_metric(metric, slo, Binding.TTFT, by_tpot, Binding.E2E, Binding.ITL)
    found = jnp.where(metrics.overflow > 0.5 * misses, Binding.PREFILL_MEMORY, found)
    saturated = jnp.where(
        prefill <= jnp.minimum(link, decode),
        Binding.PREFILL_CAPACITY,
        jnp.where(link <= decode, Binding.LINK, Binding.DECODE_CAPACITY),
    )
    upper = jnp.minimum(jnp.minimum(prefill, link), decode)
    found = jnp.where(goodput > 0.995 * upper, saturated, found)
    unreachable = of_metric(metric, slo, *UNREACHABLE)
    return jnp.where(goodput > 0.0, found, unreachable).astype(jnp.int32)


UNREACHABLE = (
    Binding.TTFT_UNREACHABLE,
    Binding.TPOT_UNREACHABLE,
    Binding.E2E_UNREACHABLE,
    Binding.ITL_UNREACHABLE,
)
"""What binds where even an idle system misses a limit, in the order of `missed_metric`."""


def missed_metric(bins: LengthBins, slo: Slo, metrics: Metrics) -> Int[Array, "*c"]:
    """The metric whose constraint is the furthest from being met.

    0 is TTFT, 1 TPOT, 2 end to end, 3 ITL.
    """
    if not has_shares(slo) and slo.e2e is None:
        return jnp.where(1.0 - metrics.ttft_attainment >= 1.0 - metrics.tpot_attainment, 0, 1)
    attained = attainments(
        bins,
        metrics.ttft_attainment,
        metrics.tpot_attainment,
        metrics.e2e_attainment,
        metrics.itl_attainment,
    )
    return most_pressing(slo, attained, metrics.attainment)


def of_metric(
    metric: Int[Array, "*c"], slo: Slo, ttft: Leaf, tpot: Leaf, e2e: Leaf, itl: Leaf
) -> Int[Array, "*c"]:
    """Picks by `missed_metric`; that of ITL only where the promise limits it."""
    beyond = e2e if slo.itl is None else jnp.where(metric == 2, e2e, itl)
    return jnp.where(metric == 0, ttft, jnp.where(metric == 1, tpot, beyond))
