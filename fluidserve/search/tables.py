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

How far goodput out of tables is off stands in docs/performance.md. Of deployments that are not red
it is under 0.1 % where the first token leaves with prefill; where it leaves with decode under
0.1 % for 99 in 100, and up to 1 % where a small error of latencies moves goodput far (amber).
Lengths other than the longest that many prompts share make f jump as well, between nodes.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

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
from fluidserve.search.first_steps import STEP_NODES, FirstSteps, first_steps_of, shortest_step
from fluidserve.search.grid import Grid, Shape
from fluidserve.search.nodes import NODES, Table, tabulate
from fluidserve.search.score import (
    Picks,
    Question,
    as_arrays,
    candidates,
    padded,
    room_for,
    shared_parts,
)
from fluidserve.specs.lengths import LengthBins
from fluidserve.stages.decode import tpot_within
from fluidserve.stages.prefill import prefill_state
from fluidserve.stages.windowed import prompt_moments
from fluidserve.timing.instance import Instance

CHUNK = 512
WAITS = (0.0, 0.5, 1.0)


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
      first_steps: where the nodes of the first decode step lie; None where it is no part of TTFT.
      terms: of the sum over lengths.
    """

    question: Question
    prefill: Table
    decode: Table
    memory: Memory
    link: Transfers
    first_steps: FirstSteps | None
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


def table_bytes(question: Question, pools: int) -> int:
    """Bytes of the tables of so many pools in float32."""
    terms = _factors(question.bins)[1].shape[0]
    steps = 1 if question.first_token == "prefill" else STEP_NODES
    return 4 * NODES * pools * (steps * (terms + 1) + len(WAITS) * (terms + 4))


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
    size = -(-len(pools.shape) // CHUNK) * CHUNK
    filled = Pools(
        shape=padded(pools.shape, size, np.int32), count=padded(pools.count, size, float)
    )
    limits = {name: min(float(getattr(question.slo, name)), NO_LIMIT) for name in ("ttft", "tpot")}
    question = dataclasses.replace(question, slo=dataclasses.replace(question.slo, **limits))
    arrays = as_arrays((question, grid.stacked(), filled, _factors(question.bins)))
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
    shortest = shortest_step(everything, question)

    def of_prefill(pools: Pools) -> Table:
        plan = plan_of(pools)
        first_steps = first_steps_of(plan, question, shortest)
        nothing = jnp.zeros((1, *plan.prefill.mean.shape), plan.prefill.mean.dtype)
        nodes = nothing if first_steps is None else first_steps.nodes(question.slo.ttft)
        prefill_rate, link_rate, _ = largest_rate(plan)
        end = jnp.minimum(prefill_rate, link_rate)

        def states(rate):
            state = prefill_state(
                plan.prefill,
                plan.system.n_prefill,
                rate,
                arrival_scv=plan.arrival_scv,
                dispatch=plan.system.dispatch,
                max_replicas=max_replicas,
            )
            link = link_at(plan, rate, prefill_load=state.load, n_prefill=plan.system.n_prefill)
            return state, link

        def at_node(rate):
            state, link = states(rate)
            done = plan.prefill.mean * plan.prefill.pp + state.wait.mean * state.unit

            def with_step(after):
                within = prompts_within(plan, state, link, question.slo.ttft, after)
                return jnp.concatenate([jnp.tensordot(left.T, within, axes=1), done[None]])

            return lax.map(with_step, nodes)

        def attained(rate):
            within = prompts_within(plan, *states(rate), question.slo.ttft, nodes[0])
            return jnp.tensordot(question.bins.in_share, within, axes=1)

        return tabulate(attained, at_node, question.slo.attainment, end)

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
            within, _ = shares(rate, jnp.zeros((), rate.dtype))
            return jnp.tensordot(question.bins.out_share, within, axes=1)

        return tabulate(attained, at_node, question.slo.attainment, end)

    def in_chunks(build, pools: Pools) -> Table:
        split = jax.tree.map(lambda x: jnp.reshape(x, (-1, CHUNK)), pools)
        found = lax.map(build, split)
        # (chunks, nodes, axis, channels, pools) to (channels, axis, pools * nodes)
        values = jnp.transpose(found.values, (3, 2, 0, 4, 1))
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
        first_steps=first_steps_of(everything, question, shortest),
        terms=left.shape[1],
    )
