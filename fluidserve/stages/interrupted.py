r"""Decode on instances that also do prefill: steps that prompts stretch, and the TPOT they give.

A prompt makes the decode steps that run meanwhile longer by x seconds in all: its whole prefill
where prompts go first, what its tokens add to shared iterations where they come in pieces. With
:math:`\lambda` prompts per second and instance, o steps of :math:`\tau` take
:math:`o\,\tau / (1 - \lambda x)`: as the service of a job that others of higher priority interrupt
(Cohen, The Single Server Queue, 1982, chapter III.3). What they add is a compound Poisson
sum, whose variance over o steps is

.. math:: \frac{o\,\tau\,\lambda\,E[x^2]}{(1 - \lambda E x)^3} .

Those steps start behind the prompts that were left waiting when one's own was done, which delays
the second token once. Arrays have their bins on the first axis and candidates on the rest.
"""

import jax.numpy as jnp
from jax import lax
from jax.scipy.special import ndtr
from jaxtyping import Array, Float

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf, Number
from fluidserve.stages.decode import DecodeLengths, DecodeState, averaging
from fluidserve.timing.model import AbstractTimeModel, Work

_ROUNDS = 4
LEAST_LEFT = 1e-3
"""Least share of the time that prompts leave to decode; below it the instance is overloaded."""
_ALIKE = 1.4
"""Twice the correlation between batches that are large and prompts that are many."""


def with_bubbles(load: Number, pp: Number) -> Number:
    """Share of the time that prompts take from decode in a pipeline.

    A lane with prompts keeps the other lanes waiting for its whole pass, `pp` times as long as it
    works in one stage, unless these hold prompts as well.

    Args:
      load: share of the time that a stage works on prompts.
      pp: stages, each with a lane.
    """
    return load * (1.0 + (pp - 1.0) * jnp.maximum(1.0 - load, 0.0))


@pytree
class PausedTimes(AbstractTimeModel):
    """Decode steps that pause for prompts.

    Attributes:
      times: of the instance.
      load: share of the time that prompts take.
    """

    times: AbstractTimeModel
    load: Leaf

    def stage_time(self, work: Work) -> Number:
        """Time between the starts of two steps of one stage, s."""
        return self.times.stage_time(work) / jnp.maximum(1.0 - self.load, LEAST_LEFT)


@pytree
class Pieces:
    """Prompts on average, as pieces of them load an iteration.

    Attributes:
      tokens: to be computed, of a prompt.
      pairs: attended pairs per token.
      read: tokens of KV read per token.
      budget: tokens of an iteration.
    """

    tokens: Leaf
    pairs: Leaf
    read: Leaf
    budget: Leaf

    def room(self, batch: Number) -> Number:
        """Prompt tokens that fit beside a decode batch, at least one."""
        return jnp.maximum(self.budget - batch, 1.0)

    def work(self, new: Number) -> Work:
        """Pieces of `new` tokens together."""
        return Work(
            new=new,
            attended=new * self.pairs,
            kv_read=new * self.read,
            sequences=new / self.tokens,
            prompts=1.0,
        )


@pytree
class SharedTimes(AbstractTimeModel):
    """Decode steps of iterations that hold pieces of prompts while there are any.

    Attributes:
      times: of the instance.
      pieces: the prompts.
      rate: prompts of an instance, 1/s.
      pp: stages of the instance.
    """

    times: AbstractTimeModel
    pieces: Pieces
    rate: Leaf
    pp: Leaf

    def stage_time(self, work: Work) -> Number:
        """Mean time of an iteration of one stage, s."""
        alone, added = self.added(work)
        return alone / jnp.maximum(1.0 - with_bubbles(self.rate * added, self.pp), LEAST_LEFT)

    def added(self, work: Work) -> tuple[Number, Number]:
        """Time of an iteration without prompts, and what a prompt adds to the others, s.

        Of q prompts that come in an iteration's mean time, those iterations that hold any hold
        :math:`q / (1 - e^{-q})`, as far as they fit: one while they are rare, which may hide in
        what the memory takes anyway, and more of them the busier they keep the instance.
        """
        alone = self.times.stage_time(work)
        room, tokens = self.pieces.room(work.new), self.pieces.tokens

        def again(_, added):
            mean = alone / jnp.maximum(1.0 - self.rate * added, LEAST_LEFT)
            come = jnp.maximum(self.rate * mean, 1e-3)
            together = jnp.minimum(tokens * come / -jnp.expm1(-come), room)
            return self._share(work, alone, together)

        added = self._share(work, alone, jnp.minimum(tokens, room))
        return alone, lax.fori_loop(0, _ROUNDS, again, added)

    def _share(self, work: Work, alone: Number, new: Number) -> Number:
        """What a prompt adds to iterations that hold `new` prompt tokens, s."""
        held = self.times.stage_time(work + self.pieces.work(new))
        return (held - alone) * self.pieces.tokens / new


@pytree
class Interruptions:
    """What prompts do to the tokens of others; leaves have the shape of the candidates.

    Attributes:
      left: mean time that prompts left waiting delay the second token beyond an average step, s.
      spread: variance that prompts add to the time of a step, for independent steps, s**2.
      longest: longest iteration, s; ``inf`` where prompts of any length can come between.
    """

    left: Leaf
    spread: Leaf
    longest: Leaf


def interrupted_tpot_within(
    state: DecodeState,
    lengths: DecodeLengths,
    limit: Float[Array, "..."] | float,
    prompts: Interruptions,
) -> Float[Array, "m *c"]:
    """Share of each output bin whose TPOT is at most `limit`; 1 for a single output token.

    Zero where the instances cannot carry the load.

    Args:
      state: decode, its steps as long as prompts make them.
      lengths: the requests.
      limit: on the mean time per output token after the first, s.
      prompts: the interruptions.
    """
    g = jnp.reshape(lengths.gaps, (-1, *([1] * jnp.ndim(state.step))))
    many = jnp.maximum(g, 1.0)
    mean = state.step + prompts.left / many
    by_batch = state.step_var * averaging(many / state.relaxation)
    by_prompts = prompts.spread / many
    variance = by_batch + by_prompts + _ALIKE * jnp.sqrt(by_batch * by_prompts + 1e-30)
    deviation = jnp.sqrt(variance + state.step**2 / (12.0 * many**2) + (1e-9 * state.step) ** 2)
    met = ndtr((limit - mean) / deviation)
    met = jnp.where(prompts.longest <= limit, 1.0, met)
    met = jnp.where(g < 0.5, 1.0, met)
    return jnp.where(state.full < 1.0, met, 0.0)
