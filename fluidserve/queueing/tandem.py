r"""A row of equal stages: the same job takes the same time in each (a proportionate flow shop).

A job that found an empty line passes the k stages in k service times. Behind a longer job it is
held up: with X the longest job ahead of it in the busy period of the first stage, its sojourn
after the first stage is (k-1) max(S, X), because every later stage is paced by the longest job so
far (Boxma 1979 for tandems with identical service times). Jobs of earlier busy periods are
ignored, so this is a lower bound, exact for equal jobs.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

_NEWTON_STEPS = 10


def longest_ahead_cdf(
    edges: Float[Array, "q *c"],
    sizes: Float[Array, "q *c"],
    shares: Float[Array, "q *c"],
    rho: Float[Array, "*c"],
) -> Float[Array, "q *c"]:
    r"""P(X <= edge) for the longest job X of the M/G/1 busy period that an arrival finds.

    With q the chance that a job is longer than the edge and β the chance that a busy period of
    short jobs only ends before a longer one comes,
    :math:`P(X\le e) = (1-\rho)\,[1 + (1-q)(1-\beta)/q]`, where β solves
    :math:`(1-q)\beta = \sum_i p_i e^{-s_i\lambda(1-(1-q)\beta)}` over the short jobs.

    Args:
      edges: upper edge of each size bin, ascending along the first axis.
      sizes: mean size in each bin, normalised to an overall mean of 1.
      shares: probability of each bin.
      rho: load, in [0, 1).

    Returns:
      the distribution at each edge, at least ``1 - rho`` (nothing ahead counts as 0).
    """
    short = edges[:, None] >= edges[None, :]  # (edge j, bin i): bin i lies below edge j
    weight = jnp.where(short, shares[None, :], 0.0)
    below = jnp.sum(weight, axis=1)  # 1 - q
    beta = jnp.full(below.shape, 0.5) * jnp.ones_like(rho)

    def newton(_, beta):
        rate = rho * (1.0 - below * beta)
        term = weight * jnp.exp(-sizes[None, :] * rate[:, None])
        value = jnp.sum(term, axis=1) / below - beta
        slope = jnp.sum(term * sizes[None, :], axis=1) * rho - 1.0
        return jnp.clip(beta - value / jnp.minimum(slope, -1e-4), 0.0, 1.0)

    beta = lax.fori_loop(0, _NEWTON_STEPS, newton, beta)
    above = jnp.maximum(1.0 - below, 1e-6)
    cdf = (1.0 - rho) * (1.0 + below * (1.0 - beta) / above)
    cdf = cdf.at[-1].set(1.0)
    return jnp.clip(lax.cummax(cdf), 1.0 - rho, 1.0)


def longest_ahead_quantiles(
    lows: Float[Array, "q *c"],
    highs: Float[Array, "q *c"],
    sizes: Float[Array, "q *c"],
    shares: Float[Array, "q *c"],
    rho: Float[Array, "*c"],
    levels: tuple[float, ...],
) -> Float[Array, "j *c"]:
    """Quantiles of the longest job ahead, given that there is one.

    Args:
      lows: lower edge of each size bin.
      highs: upper edge of each size bin.
      sizes: mean size in each bin, normalised to an overall mean of 1.
      shares: probability of each bin.
      rho: load, in (0, 1).
      levels: probabilities at which the quantiles are wanted.

    Returns:
      sizes in the unit of the edges, one row per level; linear inside a bin.
    """
    cdf = (longest_ahead_cdf(highs, sizes, shares, rho) - (1.0 - rho)) / rho
    before = jnp.concatenate([jnp.zeros_like(cdf[:1]), cdf[:-1]])
    rows = []
    for level in levels:
        part = jnp.clip((level - before) / jnp.maximum(cdf - before, 1e-9), 0.0, 1.0)
        reached = jnp.where(level > before, lows + part * (highs - lows), 0.0)
        rows.append(jnp.max(reached, axis=0))
    return jnp.stack(rows)
