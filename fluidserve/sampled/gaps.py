"""Times between tokens, counted by the token rather than by the request.

A request's TPOT is a mean that hides stalls; a reader sees the gaps. Their histogram takes the same
work per step as the rest of the loop, whatever the batch.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fluidserve._typing import Number
from fluidserve.sampled.trace import Rows, judged

BINS = 1024
SHORTEST, LONGEST = 1e-4, 100.0
"""Gaps outside count as these, s. The bins are equally wide on a logarithmic scale, 1.4 %."""

_WIDTH = math.log(LONGEST / SHORTEST) / BINS


class GapCount(NamedTuple):
    """Gaps of one engine so far, in the unit of its clock.

    Attributes:
      tokens: with gaps in each bin, (bins,).
      since: whole part of the clock from which on they count.
      until: up to which they do.
      stall: time of iterations of prompts only since the last decode iteration.
      fresh: requests whose first token has left since then.
      fresh_stall: what of that time each of these has waited, added up.
    """

    tokens: jax.Array
    since: jax.Array
    until: jax.Array
    stall: jax.Array
    fresh: jax.Array
    fresh_stall: jax.Array

    def after(
        self,
        rate: Number,
        clock: Number,
        *,
        decoding: Number,
        first: Number,
        more: Number,
        rest: Number,
    ) -> "GapCount":
        """Counts the tokens of a spell of decode iterations.

        Requests that were there before the last stall have waited it out; those that joined in it
        count with their mean wait.

        Args:
          rate: of the lane, 1/s.
          clock: whole part of the clock.
          decoding: requests that get a token in each iteration behind one of theirs; 0 for none.
          first: time of the first iteration.
          more: iterations that follow.
          rest: what these take together.
        """
        fresh = jnp.minimum(self.fresh, decoding).astype(first.dtype)
        old = decoding.astype(first.dtype) - fresh
        count = decoding * more
        gaps = jnp.stack(
            [
                first + self.stall,
                first + self.fresh_stall / jnp.maximum(fresh, 1.0),
                rest / jnp.maximum(more, 1).astype(first.dtype),
            ]
        )
        weight = jnp.stack([old, fresh, count.astype(first.dtype)])
        weight = jnp.where((clock >= self.since) & (clock < self.until), weight, 0.0)
        ran, none = decoding > 0, jnp.zeros_like(self.stall)
        return self._replace(
            tokens=self.tokens.at[bin_of(gaps / rate)].add(weight),
            stall=jnp.where(ran, none, self.stall),
            fresh=jnp.where(ran, 0, self.fresh),
            fresh_stall=jnp.where(ran, none, self.fresh_stall),
        )

    def stalled(self, time: Number, joins: Number) -> "GapCount":
        """Counts an iteration of prompts only, at whose end so many requests have first tokens."""
        return self._replace(
            stall=self.stall + time,
            fresh=self.fresh + joins,
            fresh_stall=self.fresh_stall + self.fresh.astype(self.stall.dtype) * time,
        )


def no_gaps(rows: Rows) -> GapCount:
    """Nothing counted, with the time of the judged requests of a trace as the window."""
    window = judged(rows.n_in.shape[-1] - 1)
    zero, none = jnp.zeros_like(rows.part[0]), jnp.zeros((), jnp.int32)
    return GapCount(
        tokens=jnp.zeros(BINS, rows.part.dtype),
        since=rows.whole[window.start],
        until=rows.whole[window.stop],
        stall=zero,
        fresh=none,
        fresh_stall=zero,
    )


def bin_of(gap: Number) -> jax.Array:
    """The bin of a gap, s."""
    position = jnp.log(jnp.maximum(gap, SHORTEST) / SHORTEST) / _WIDTH
    return jnp.clip(position.astype(jnp.int32), 0, BINS - 1)


def gap_quantiles(tokens: jax.Array, levels: tuple[float, ...]) -> jax.Array:
    """Gaps below which shares of the tokens lie, s, the levels on the first axis; 0 without any.

    Args:
      tokens: in each bin, (bins,).
      levels: shares.
    """
    below = jnp.cumsum(tokens)
    wanted = jnp.asarray(levels, tokens.dtype) * below[-1]
    at = jnp.clip(jnp.searchsorted(below, wanted), 0, BINS - 1)
    inside = (wanted - (below[at] - tokens[at])) / jnp.maximum(tokens[at], 1e-9)
    gap = SHORTEST * jnp.exp(_WIDTH * (at + jnp.clip(inside, 0.0, 1.0)))
    return jnp.where(below[-1] > 0.0, gap, 0.0)
