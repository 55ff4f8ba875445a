r"""Prompts in pieces: how long they take beside a decode batch, and what they add to its steps.

By itself a prompt takes whole iterations and one for the rest, each as long as its piece and the
decode batch make it. Where prompts fill the iterations it takes its share of them. Between the two
the load of the prompts decides.

Arrays have their bins on the first axis and candidates on the rest.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf
from fluidserve.queueing.batch import Batching, batching
from fluidserve.specs.lengths import LengthBins
from fluidserve.stages.decode import DecodeLengths
from fluidserve.stages.interrupted import Pieces, SharedTimes
from fluidserve.stages.prefill import MOST_TOGETHER, PrefillShape
from fluidserve.timing.instance import Instance
from fluidserve.timing.model import Work

_LEAST_OWN = 0.05


def mean_pieces(
    instance: Instance, bins: LengthBins, budget: Leaf, prefix_hit: Leaf | None
) -> Pieces:
    """Prompts on average; what pieces of long ones read again is counted.

    Args:
      instance: the instance.
      bins: the prompts.
      budget: tokens of an iteration.
      prefix_hit: share of every prompt found in the prefix cache; None without one.
    """
    budget = jnp.asarray(budget)

    def lead(x):
        return jnp.reshape(x, (-1, *([1] * jnp.ndim(budget))))

    share, mean = lead(bins.in_share), lead(bins.in_mean)
    work = instance.prefill_work(mean, prefix_hit)
    square = mean**2 + lead(bins.in_var)
    chunks = jnp.maximum(mean / budget, 1.0)
    again = chunks * work.kv_read + 0.5 * chunks * (chunks - 1.0) * budget
    tokens = jnp.sum(share * work.new, axis=0)
    pairs = jnp.sum(share * work.attended * square / mean**2, axis=0)
    read = jnp.sum(share * again, axis=0)
    return Pieces(tokens=tokens, pairs=pairs / tokens, read=read / tokens, budget=budget)


@pytree
class Beside:
    """Iterations beside a mean decode batch; times of one stage, s.

    Attributes:
      instance: the instance.
      batch: decode of the lane.
      alone: time of an iteration without prompts.
      added: what a prompt adds to the iterations where they are many.
      room: prompt tokens of an iteration.
      pieces: the prompts on average.
      crowd: how far prompts share iterations, 0 to 1.
    """

    instance: Instance
    batch: Work
    alone: Leaf
    added: Leaf
    room: Leaf
    pieces: Pieces
    crowd: Leaf

    @property
    def full(self) -> Array:
        """Time of an iteration whose budget is full."""
        return self.alone + self.added * self.room / self.pieces.tokens

    def prompt(
        self, tokens: Float[Array, "q ..."], prefix_hit: Leaf | None
    ) -> tuple[Float[Array, "q *c"], Float[Array, "q *c"]]:
        """Time of a prompt, and what it adds to decode."""
        work = self.instance.prefill_work(tokens, prefix_hit)
        whole = jnp.floor(work.new / self.room)
        rest = work.new - whole * self.room
        last = jnp.where(rest > 0.0, 1.0, 0.0)
        before = jnp.maximum(whole + last - 1.0, 0.0) * work.kv_read
        again = before + self.room * whole * (0.5 * (whole - 1.0)) + whole * rest

        def with_piece(new):
            part = new / work.new
            piece = jax.tree.map(lambda x: x * part, work)
            read = piece.kv_read + part * again
            piece = dataclasses.replace(piece, kv_read=read, prompts=1.0, sequences=1.0)
            return self.instance.times.stage_time(self.batch + piece)

        by_itself = whole * with_piece(self.room) + last * with_piece(jnp.maximum(rest, 1.0))
        extra = by_itself - self.alone * (whole + last)
        shared = self.added * work.new / self.pieces.tokens
        sharing = self.alone * jnp.maximum(work.new / self.room, 1.0) + shared
        time = by_itself + self.crowd * (sharing - by_itself)
        return time, extra + self.crowd * (shared - extra)


def beside(
    times: SharedTimes,
    instance: Instance,
    lengths: DecodeLengths,
    lane: Float[Array, "*c"],
    crowd: Float[Array, "*c"],
) -> Beside:
    """Iterations of an instance whose lanes hold `lane` decoding requests each."""
    batch = instance.decode_work(lane, lane * lengths.context)
    alone, added = times.added(batch)
    return Beside(
        instance=instance,
        batch=batch,
        alone=alone,
        added=added,
        room=times.pieces.room(lane),
        pieces=times.pieces,
        crowd=crowd,
    )


def chunked_shape(
    mixed: Beside, bins: LengthBins, prefix_hit: Leaf | None
) -> tuple[PrefillShape, Float[Array, "q *c"]]:
    """Prompts as a queue sees them, and what each bin adds to decode, s.

    Prompts that share an iteration share its decode step.
    """

    def lead(x):
        return jnp.reshape(x, (*x.shape, *([1] * jnp.ndim(mixed.alone))))

    share = lead(bins.in_share)
    middle, extra = mixed.prompt(lead(bins.in_mean), prefix_hit)
    low, _ = mixed.prompt(lead(bins.in_low), prefix_hit)
    high, _ = mixed.prompt(lead(bins.in_high), prefix_hit)
    mean = jnp.sum(share * middle, axis=0)
    square = jnp.sum(share * (middle**2 + (high - low) ** 2 / 12.0), axis=0)
    scv = jnp.maximum(square / mean**2 - 1.0, 0.0)
    shape = PrefillShape(
        low=low,
        high=high,
        mean=mean,
        scv=scv,
        edges=jnp.concatenate([low[:1], high]),
        ahead=None,
        pp=jnp.broadcast_to(mixed.instance.pp, mean.shape),
        batching=_together(mixed, bins, mean, scv),
    )
    return shape, extra


def _together(
    mixed: Beside, bins: LengthBins, mean: Float[Array, "*c"], scv: Float[Array, "*c"]
) -> Batching:
    """Prompts of one iteration: cut to fit, the first that does not takes part with a piece."""
    own = jnp.maximum(mean - mixed.alone, _LEAST_OWN * mean)
    length = jnp.sum(bins.in_share * bins.in_mean)
    spread = jnp.sum(bins.in_share * (bins.in_mean**2 + bins.in_var)) / length**2 - 1.0
    room = mixed.room / mixed.pieces.tokens
    found = batching((mean - own) / own, scv * (mean / own) ** 2, room, spread, most=MOST_TOGETHER)
    fit = jnp.concatenate([jnp.ones_like(found.fit[:1]), found.fit])
    return dataclasses.replace(
        found,
        fit=0.5 * (fit[1:] + fit[:-1]),
        full=jnp.maximum(room, 1.0),
        company=jnp.minimum(room, 1.0),
    )
