"""The axis of the first decode step, where it counts in TTFT.

It is cut where the longest prompts no longer reach the limit: many of them often have one length,
so that the share in time jumps there.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf
from fluidserve.deploy.disaggregated import Plan
from fluidserve.search.score import Question
from fluidserve.stages.decode import step_time
from fluidserve.timing.kv import tokens_held

STEP_NODES = 33
"""Nodes of the first decode step."""
_CUT = 2e-6


@pytree
class FirstSteps:
    """Axis of the first decode step behind prefill pools: equal ratios up to a cut and from there.

    Attributes:
      low: shortest first step, s.
      cut: first step from which on the longest prompts miss TTFT on an idle pool, s, (p,).
      high: longest first step that matters, s.
      before: nodes before the cut, less one, (p,).
    """

    low: Leaf
    cut: Leaf
    high: Leaf
    before: Leaf

    def place(self, after: Float[Array, "..."]) -> Float[Array, "..."]:
        """Where a first step, s, lies among the nodes."""
        beyond = STEP_NODES - 2.0 - self.before
        low, cut, high = jnp.log(self.low), jnp.log(self.cut), jnp.log(self.high)
        at = jnp.log(jnp.clip(after, self.low, self.high))
        under = self.before * (at - low) / (cut - low)
        over = self.before + 1.0 + beyond * (at - cut) / (high - cut)
        return jnp.where(after < self.cut, under, over)

    def nodes(self, ttft: Leaf) -> Float[Array, "a p"]:
        """The nodes, two of them on either side of the cut, s."""
        k = jnp.arange(STEP_NODES, dtype=self.cut.dtype)[:, None]
        beyond = STEP_NODES - 2.0 - self.before
        under = self.low * (self.cut / self.low) ** (k / self.before)
        over = self.cut * (self.high / self.cut) ** ((k - self.before - 1.0) / beyond)
        nodes = jnp.where(k <= self.before, under, over)
        aside = jnp.where(k == self.before, -_CUT, jnp.where(k == self.before + 1.0, _CUT, 0.0))
        return nodes + aside * ttft


def shortest_step(plan: Plan, question: Question) -> Leaf:
    """The shortest decode step of all pools, s."""
    single = step_time(plan.system.decode, plan.lengths, jnp.ones_like(plan.prefill.mean))
    return jnp.minimum(jnp.min(single), 0.5 * question.slo.ttft)


def first_steps_of(plan: Plan, question: Question, low: Leaf) -> FirstSteps | None:
    """Nodes of the first decode step: from the shortest to one beyond the limits."""
    if question.first_token == "prefill":
        return None
    system, bins, ttft = plan.system, plan.bins, question.slo.ttft
    # half a step and a step, of which more than half of the requests miss TPOT
    high = jnp.clip(1.6 * question.slo.tpot, 1.01 * low, ttft)
    per_token = system.kv_bytes_per_token / system.link_bandwidth
    transfer = tokens_held(system.kv, bins.in_high[-1]) * per_token
    alone = plan.prefill.high[-1] * plan.prefill.pp
    cut = ttft - system.handover_overhead - transfer - alone
    cut = jnp.clip(cut, 1.001 * low, high / 1.001)
    spaces = STEP_NODES - 2
    before = jnp.round(spaces * jnp.log(cut / low) / jnp.log(high / low))
    return FirstSteps(low=low, cut=cut, high=high, before=jnp.clip(before, 1.0, spaces - 1.0))
