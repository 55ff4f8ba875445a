r"""End-to-end latency: the time to the first token and the decode time behind it, added up.

Given its lengths, a request's TTFT F and decode time G are taken as independent, so that

.. math:: P(\text{E2E} \le Q) = \int G(Q - t)\, dF(t) ,

over a grid of times: the mass that F puts between two grid points meets the mean of G at both. The
error of a cell is at most half the product of what F and G change in it. Limits on TTFT and TPOT in
the same promise cap F and G at their values there.

Arrays have the grid on the first axis, bins on the second, and candidates on the rest.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

CELLS = 24
"""Cells of the grid."""
GROWTH = 50.0
"""Width of the last cell over the first, to the power ``CELLS / (CELLS - 1)``."""


def time_grid(earliest: Float[Array, "*c"], last: Float[Array, "*c"]) -> Float[Array, "j *c"]:
    """Times from just below `earliest` to `last`, ever further apart; all `last` if it is earlier.

    Args:
      earliest: TTFT of the shortest prompt in an idle system, s.
      last: end of the grid, s.
    """
    part = (GROWTH ** jnp.linspace(0.0, 1.0, CELLS + 1) - 1.0) / (GROWTH - 1.0)
    start = jnp.minimum((1.0 - 1e-3) * earliest, last)
    return start + jnp.reshape(part, (-1, *([1] * jnp.ndim(start)))) * (last - start)


def sum_within(
    joint: Float[Array, "q m"], first: Float[Array, "j q *c"], rest: Float[Array, "j m *c"]
) -> Float[Array, "*c"]:
    """Share of the requests whose two parts together are in time.

    Args:
      joint: probability of each pair of prompt and output bins.
      first: share of each prompt bin whose TTFT is at most each time of the grid.
      rest: share of each output bin whose decode time is at most what each of these times leaves.
    """
    mass = jnp.diff(first, axis=0)
    left = 0.5 * (rest[1:] + rest[:-1])
    pairs = jnp.moveaxis(jnp.tensordot(joint, mass, axes=((0,), (1,))), 0, 1)
    at_once = jnp.tensordot(joint, first[0], axes=((0,), (0,)))
    return jnp.sum(pairs * left, axis=(0, 1)) + jnp.sum(at_once * rest[0], axis=0)
