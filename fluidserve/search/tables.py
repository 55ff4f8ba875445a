r"""Tables of pools: what one pool makes of a rate, computed once and shared by all pairs.

The joint attainment of prefill pool i and decode pool j at rate :math:`\lambda` is

.. math::
   A = (1 - o)\,h \sum_r f_{ir}(\lambda)\, g_{jr}(\lambda), \qquad
   f_{ir} = \sum_q U_{qr}\,P(\text{TTFT in time} \mid q), \quad
   g_{jr} = \sum_m V_{rm}\,P(\text{TPOT in time} \mid m)

with :math:`U V` the joint probabilities of the length bins: one term for independent lengths, as
many as output bins else. What a pool feels of the other is little and enters in closed form or
as a second axis: the link's wait behind prefill pool i scales g, between a Poisson stream and
none; the first decode step of pool j, where it counts in TTFT, shifts the limit of f; overflow o
and slot wait h come from a chance and a rate of pool j.

A table has its nodes where they are needed: closest together around the largest rate at which the
pool alone would meet the target, further apart towards 0 and saturation; linear between nodes.

Goodput out of tables is within 0.04 % of the formulas where the first token leaves with prefill.
Where it leaves with decode, a share can jump with the first step, as when the longest prompts have
one length, and no line between nodes follows that: up to 0.2 % off at the median, 8 % at worst.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from fluidserve._pytree import pytree, static
from fluidserve._typing import Leaf
from fluidserve.deploy.disaggregated import (
    NO_LIMIT,
    Plan,
    decode_at,
    decoded_share,
    handover_var,
    largest_rate,
    link_at,
    prompts_within,
)
from fluidserve.deploy.promise import has_shares
from fluidserve.errors import InputError
from fluidserve.goodput import root_rate
from fluidserve.search.grid import Grid, Shape
from fluidserve.search.score import (
    Picks,
    Question,
    as_arrays,
    candidates,
    room_for,
    shared_parts,
)
from fluidserve.specs.lengths import LengthBins
from fluidserve.stages.decode import step_time, tpot_within
from fluidserve.stages.prefill import prefill_state
from fluidserve.stages.windowed import prompt_moments
from fluidserve.timing.instance import Instance

CHUNK = 512
_BELOW, _ABOVE = 48, 16
_SHARPNESS = 0.01
_IDLE = 0.003
WAITS = (0.0, 0.5, 1.0)
_FIRST_STEPS = 17
_ALMOST = 1.0 - 1e-6


@pytree
class Table:
    """Values of pools over their own rates. Shapes: ``p`` pools, ``a`` axis, ``r`` channels.

    Attributes:
      alone: largest rate at which the pool by itself meets the target, 1/s; 0 where none, (p,).
      anchor: rate around which the nodes lie closest together, 1/s, (p,).
      end: rate that saturates the pool, 1/s, (p,).
      values: (a, r, p * nodes).
    """

    alone: Leaf
    anchor: Leaf
    end: Leaf
    values: Leaf


@pytree
class Memory:
    """What a prefill pool holds, (p,) each.

    Attributes:
      count: its instances.
      mean: mean stage time, s.
      passing: mean time of a prompt in all stages, s.
      room: prompts that fit.
    """

    count: Leaf
    mean: Leaf
    passing: Leaf
    room: Leaf


@pytree
class Transfers:
    """What a request asks of the link: share that is handed over, s per token, token moments."""

    decoded: Leaf
    seconds_per_token: Leaf
    prompt: Leaf
    prompt_square: Leaf


@pytree
class Tables:
    """All pools of a question.

    Attributes:
      question: what they have in common.
      prefill: over nodes of the first decode step: the f of the pairs, and the mean time until
        prefill has ended, s.
      decode: over nodes of the link's wait: the g of the pairs, the chance of a slot wait, the rate
        of that wait, 1/s, the step time, s, and the requests that a newcomer finds in its lane.
      memory: what fits into the prefill pools.
      link: what a request asks of the link.
      first_steps: nodes of the first decode step, s.
      terms: of the sum over lengths.
    """

    question: Question
    prefill: Table
    decode: Table
    memory: Memory
    link: Transfers
    first_steps: Leaf
    terms: int = static()


@pytree
class Pools:
    """Pools of one role: shape and instances of each, arrays of one length."""

    shape: Leaf
    count: Leaf


def pools_of(shapes: list[Shape], budget: int) -> Pools:
    """Every number of instances of every shape that leaves a GPU of the budget to the other pool.

    Shape by shape, in ascending numbers of instances.
    """
    sizes = [max(budget - 1, 0) // s.gpus for s in shapes]
    return Pools(
        shape=np.repeat(np.arange(len(shapes)), sizes),
        count=np.concatenate([np.arange(1, n + 1) for n in sizes]),
    )


def place_of(pools: Pools, shape: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Index of pools of some shapes and numbers of instances among those of `pools_of`."""
    return np.searchsorted(pools.shape, shape) + count - 1


def tabulates(question: Question) -> bool:
    """Whether tables hold for a question.

    They hold joint limits on TTFT and TPOT, in steady state and an open loop, for prompts that are
    computed one at a time.
    """
    slo = question.slo
    steady = question.horizon is None and question.users is None
    joint = slo.e2e is None and not has_shares(slo)
    return steady and joint and question.prefill_batch == 1


def tables_of(grid: Grid, question: Question, pools: Pools) -> Tables:
    """Tables of the same pools in either role.

    Args:
      grid: whose shapes the pools refer to.
      question: what they have in common; one that `tabulates`.
      pools: the pools.

    Raises:
      InputError: a question that tables do not hold.
    """
    if not tabulates(question):
        raise InputError(
            "tables hold joint limits on TTFT and TPOT in steady state, for single prompts in "
            "prefill; use score_grid"
        )
    size, count = -(-len(pools.shape) // CHUNK) * CHUNK, len(pools.shape)
    padded = jax.tree.map(lambda x: np.concatenate([x, np.repeat(x[-1:], size - count)]), pools)
    padded = Pools(shape=padded.shape.astype(np.int32), count=padded.count.astype(float))
    limits = {name: min(float(getattr(question.slo, name)), NO_LIMIT) for name in ("ttft", "tpot")}
    question = dataclasses.replace(question, slo=dataclasses.replace(question.slo, **limits))
    arrays = as_arrays((question, grid.stacked(), padded, _factors(question.bins)))
    return _build(*arrays, max_replicas=room_for(int(pools.count.max())))


def _factors(bins: LengthBins) -> tuple[np.ndarray, np.ndarray]:
    """The joint probabilities as a product of two matrices with as few terms as there are.

    One for independent lengths; else one for each output bin.
    """
    joint = np.asarray(bins.joint, float)
    alone = np.asarray(bins.in_share, float), np.asarray(bins.out_share, float)
    if np.abs(joint - np.outer(*alone)).max() < 1e-9:
        return alone[0][:, None], alone[1][None]
    return joint, np.eye(joint.shape[1])


@functools.partial(jax.jit, static_argnames="max_replicas")
def _build(
    question: Question,
    shapes: Instance,
    pools: Pools,
    factors: tuple[Float[Array, "q r"], Float[Array, "r m"]],
    *,
    max_replicas: int,
) -> Tables:
    """All tables in one program, chunk by chunk."""
    ends, lengths = shared_parts(question, shapes)
    left, right = factors

    def plan_of(pools: Pools) -> Plan:
        rate = jnp.zeros_like(pools.count)
        picks = Picks(
            prefill=pools.shape,
            decode=pools.shape,
            n_prefill=pools.count,
            n_decode=pools.count,
            rate=rate,
        )
        return candidates(question, shapes, ends, lengths, picks)

    everything = plan_of(pools)
    first_steps = _first_steps(everything, question)

    def of_prefill(pools: Pools) -> Table:
        plan = plan_of(pools)
        prefill_rate, link_rate, _ = largest_rate(plan)
        end = jnp.minimum(prefill_rate, link_rate)

        def shares(rate, after):
            state = prefill_state(
                plan.prefill,
                plan.system.n_prefill,
                rate,
                arrival_scv=plan.arrival_scv,
                dispatch=plan.system.dispatch,
                max_replicas=max_replicas,
            )
            link = link_at(plan, rate, prefill_load=state.load, n_prefill=plan.system.n_prefill)
            within = prompts_within(plan, state, link, question.slo.ttft, after)
            done = plan.prefill.mean * plan.prefill.pp + state.wait.mean * state.unit
            return within, done

        def at_node(rate):
            def with_step(after):
                within, done = shares(rate, after)
                return jnp.concatenate([jnp.tensordot(left.T, within, axes=1), done[None]])

            return lax.map(with_step, first_steps)

        def attained(rate):
            within, _ = shares(rate, first_steps[0])
            return jnp.tensordot(question.bins.in_share, within, axes=1)

        return _table(attained, at_node, question.slo.attainment, end)

    def of_decode(pools: Pools) -> Table:
        plan = plan_of(pools)
        _, link_rate, decode_rate = largest_rate(plan)
        end = jnp.minimum(link_rate, decode_rate)

        def shares(rate, wait):
            # a load that leaves so much of the wait behind one prefill instance
            load = jnp.cbrt(1.0 - wait) * jnp.ones_like(rate)
            link = link_at(plan, rate, prefill_load=load, n_prefill=jnp.ones_like(rate))
            handover = link.wait + link.transfer + plan.system.handover_overhead
            state = decode_at(plan, rate, handover)
            within = tpot_within(
                state,
                plan.lengths,
                question.slo.tpot,
                handover=handover,
                handover_var=handover_var(plan, link),
                first_token=question.first_token,
            )
            return within, state

        def at_node(rate):
            def with_wait(wait):
                within, state = shares(rate, wait)
                rest = jnp.stack([state.waits, state.drain, state.step, state.found()])
                return jnp.concatenate([jnp.tensordot(right, within, axes=1), rest])

            return lax.map(with_wait, jnp.array(WAITS, rate.dtype))

        def attained(rate):
            within, _ = shares(rate, jnp.ones((), rate.dtype))
            return jnp.tensordot(question.bins.out_share, within, axes=1)

        return _table(attained, at_node, question.slo.attainment, end)

    def in_chunks(build, pools: Pools) -> Table:
        split = jax.tree.map(lambda x: jnp.reshape(x, (-1, CHUNK)), pools)
        found = lax.map(build, split)
        # (chunks, nodes, axis, channels, pools) to (axis, channels, pools * nodes)
        values = jnp.transpose(found.values, (2, 3, 0, 4, 1))
        flat = {name: getattr(found, name).reshape(-1) for name in ("alone", "anchor", "end")}
        return Table(**flat, values=jnp.reshape(values, (*values.shape[:2], -1)))

    system, mean = everything.system, everything.prefill.mean
    prompt, prompt_square = prompt_moments(question.bins, question.kv)
    held, _ = prompt_moments(question.bins, system.prefill.kv)
    return Tables(
        question=question,
        prefill=in_chunks(of_prefill, pools),
        decode=in_chunks(of_decode, pools),
        memory=Memory(
            count=pools.count,
            mean=mean,
            passing=mean * system.prefill.pp,
            room=pools.count * system.prefill.kv_capacity / held,
        ),
        link=Transfers(
            decoded=decoded_share(everything),
            seconds_per_token=question.kv_bytes_per_token / question.link_bandwidth,
            prompt=prompt,
            prompt_square=prompt_square,
        ),
        first_steps=first_steps,
        terms=left.shape[1],
    )


def _first_steps(plan: Plan, question: Question) -> Float[Array, " a"]:
    """Nodes of the first decode step, s: from the shortest to one beyond the limits.

    At equal ratios.
    """
    if question.first_token == "prefill":
        return jnp.zeros(1, jnp.result_type(plan.prefill.mean))
    system, lengths = plan.system, plan.lengths
    single = step_time(system.decode, lengths, jnp.ones_like(plan.prefill.mean))
    low = jnp.minimum(jnp.min(single), 0.5 * question.slo.ttft)
    # half a step and a step, of which more than half of the requests miss TPOT
    high = jnp.clip(1.6 * question.slo.tpot, 1.01 * low, question.slo.ttft)
    return low * (high / low) ** jnp.linspace(0.0, 1.0, _FIRST_STEPS)


def _table(attained: Any, at_node: Any, target: Leaf, end: Float[Array, " c"]) -> Table:
    """Finds where a pool alone stops to meet the target and evaluates it around there."""
    alone, _ = root_rate(lambda rate, _: attained(rate), lambda share: share, target, end)
    anchor = jnp.where(alone > 0.0, alone, 0.5 * end)
    reach = _reach(anchor, end)
    above = jnp.arange(1, _ABOVE + 1, dtype=end.dtype) / _ABOVE
    over = anchor * (1.0 + _SHARPNESS * jnp.sinh(above[:, None] * reach))
    under = anchor * jnp.array(_nodes_below(), end.dtype)[:, None]
    rates = jnp.clip(jnp.concatenate([under, over]), 1e-6 * anchor, _ALMOST * end)
    return Table(alone=alone, anchor=anchor, end=end, values=lax.map(at_node, rates))


def _stretched(share, xp=jnp):
    """Where a share of the anchor lies between 0 and 1 on an axis stretched at both ends."""
    near_idle = xp.arcsinh(share / _IDLE) / np.arcsinh(1.0 / _IDLE)
    near_anchor = xp.arcsinh((1.0 - share) / _SHARPNESS) / np.arcsinh(1.0 / _SHARPNESS)
    return near_idle / 3.0 + (1.0 - near_anchor) * (2.0 / 3.0)


def _nodes_below() -> np.ndarray:
    """Shares of the anchor at equal steps of that axis, from 0 to 1."""
    wanted = np.arange(_BELOW + 1) / _BELOW
    low, high = np.zeros(_BELOW + 1), np.ones(_BELOW + 1)
    for _ in range(60):
        middle = 0.5 * (low + high)
        beyond = _stretched(middle, np) > wanted
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    return 0.5 * (low + high)


def _reach(anchor, end):
    """Where saturation lies on the stretched axis."""
    return jnp.arcsinh(jnp.maximum(end / anchor - 1.0, 1e-6) / _SHARPNESS)


def read(table: Table, pool: Int[Array, "*c"], rate: Float[Array, "..."]) -> Float[Array, "a r *c"]:
    """Values of pools at a rate, 1/s; meaningless at or beyond the end of a pool."""
    anchor, end = table.anchor[pool], table.end[pool]
    share = rate / anchor
    under = _BELOW * _stretched(jnp.minimum(share, 1.0))
    beyond = jnp.arcsinh(jnp.maximum(share - 1.0, 0.0) / _SHARPNESS)
    over = _BELOW + _ABOVE * beyond / _reach(anchor, end)
    at = jnp.clip(jnp.where(share < 1.0, under, over), 0.0, _BELOW + _ABOVE - 1e-3)
    node = jnp.floor(at).astype(int)
    index = pool * (_BELOW + _ABOVE + 1) + node
    low, high = (jnp.take(table.values, i, axis=-1) for i in (index, index + 1))
    return low + (at - node) * (high - low)
