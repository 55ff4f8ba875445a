"""Where the formulas are known to fail: doubts about a goodput, raised from the numbers at hand."""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Int

from fluidserve._typing import Leaf
from fluidserve.deploy.disaggregated import Metrics, Plan
from fluidserve.specs.slo import Slo
from fluidserve.stages.decode import slots, step_time
from fluidserve.status import Doubt

_FEW, _FEW_IN_LANES = 0.25, 0.75
"""Requests that decode together, over the experts' spread, below which steps differ too much."""
NUDGE = 0.01
"""How far the rate and the limits are moved to see which of them attainment depends on."""


def doubts_of(
    plan: Plan, slo: Slo, metrics: Metrics, slower: Array, tighter: Array
) -> Int[Array, "*c"]:
    """Bits of `Doubt` about a deployment at its goodput.

    The thresholds come from comparisons with the event simulator (docs/accuracy.md).

    Args:
      plan: the deployment.
      slo: the promise.
      metrics: the deployment at its goodput.
      slower: `Metrics.excess` at ``1 - NUDGE`` of that rate.
      tighter: the same at that rate under limits of ``1 - NUDGE`` of the promise.
    """
    system, bins = plan.system, plan.bins
    share = jnp.reshape(bins.in_share, (-1, *([1] * jnp.ndim(metrics.batch))))
    alone = plan.prefill.high * plan.prefill.pp
    typical = plan.prefill.mean * plan.prefill.pp
    reach, hopeless = slo.ttft, 0.06
    if slo.ttft_share is not None:
        # the same share of what may miss, and a margin: a percentile beyond it is that of idle
        # instances, which hardly reacts to the rate
        own = slo.ttft_share > 0.0
        alone = alone + jnp.where(own, _after_prefill(plan, metrics), 0.0)
        reach = jnp.where(own, 0.9 * slo.ttft, slo.ttft)
        hopeless = jnp.where(own, 0.6 * (1.0 - slo.ttft_share), hopeless)
    never = jnp.sum(share * (alone > reach), axis=0)
    held = slots(system.decode, plan.lengths, system.max_batch, jnp.zeros_like(metrics.batch))
    raised = common_doubts(plan.arrival_scv, plan.dispersion, held, metrics, slower, tighter) | {
        Doubt.LENGTH_TAIL: never > hopeless,
        Doubt.BUSY_LINK: metrics.link_load > 0.6,
        Doubt.PREFILL_MEMORY: (metrics.overflow > 0.01) | (metrics.prefill_memory > 0.5),
        Doubt.BATCHED_PREFILL: system.prefill_batch > 1,
        Doubt.TIGHT_TTFT: slo.ttft < 1.5 * typical,
    }
    if system.decode.curved:
        lane = metrics.batch / system.decode.pp
        few = jnp.where(system.decode.pp > 1.0, _FEW_IN_LANES, _FEW) * system.decode.expert_spread
        raised[Doubt.FEW_EXPERTS] = lane < few
    if plan.horizon is not None:
        raised[Doubt.DECODE_BACKLOG] = metrics.decode_load > 1.0
    return doubt_bits(raised, jnp.shape(metrics.batch))


def common_doubts(
    arrival_scv: Leaf,
    dispersion: Leaf,
    held: Array,
    metrics: Metrics,
    slower: Array,
    tighter: Array,
) -> dict[Doubt, ArrayLike]:
    """Doubts about deployments of any kind, with whether each holds.

    Args:
      arrival_scv: squared coefficient of variation between arrivals.
      dispersion: variance over mean of the arrivals per minute.
      held: requests that an instance can decode at once.
      metrics: as `doubts_of` takes them; so are the rest.
      slower: see there.
      tighter: see there.
    """
    gained = jnp.maximum(slower - metrics.excess, 1e-6)
    leverage = jnp.maximum(metrics.excess - tighter, 0.0) / gained
    return {
        Doubt.BURSTY_ARRIVALS: jnp.maximum(arrival_scv, dispersion) > 4.0,
        Doubt.FEW_SLOTS: held < 10.0,
        Doubt.LATENCY_LEVERAGE: leverage > 4.0,
        Doubt.FLAT_CURVE: gained < 0.25 * NUDGE * metrics.attainment,
    }


def doubt_bits(raised: Mapping[Doubt, ArrayLike], shape: tuple[int, ...]) -> Int[Array, "*c"]:
    """Bits of `Doubt`, by whether each holds of the candidates."""
    bits = jnp.zeros(shape, jnp.int32)
    for doubt, holds in raised.items():
        bits = bits | jnp.where(holds, int(doubt), 0)
    return bits


def _after_prefill(plan: Plan, metrics: Metrics) -> Array:
    """Time from the end of prefill to the first token for the longest prompt of each bin, s."""
    system = plan.system
    if system.first_token == "prefill":
        return jnp.zeros_like(metrics.batch)
    longest = jnp.reshape(plan.bins.in_high, (-1, *([1] * jnp.ndim(metrics.batch))))
    step = step_time(system.decode, plan.lengths, jnp.maximum(metrics.batch, 1.0))
    transfer = longest * system.kv_bytes_per_token / system.link_bandwidth
    return transfer + system.handover_overhead + step
