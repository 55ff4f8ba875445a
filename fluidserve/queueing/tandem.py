r"""A row of equal stages: the same job takes the same time in each (a proportionate flow shop).

A job that nothing holds up passes k stages in k service times. Every stage behind the first is
paced by the longest job so far, so a job with service time S that waits W for the first stage
leaves the last one after

.. math:: T = W + S + (k-1)\,\max(S, X), \qquad X = \max_l\,(S_l - I_l/(k-1)),

over all earlier jobs l, where :math:`I_l` is the time that the first stage has been idle between
l and the job at hand. (Unfold the recursion ``D_j = max(D_{j-1}, D_j of the job before) + S`` into
a maximum over paths.) A long job of the running busy period counts in full; one of an earlier busy
period fades while the first stage is idle.

For one Poisson-fed row both parts are exact. With F the law of S, q = 1 - F(x), λ the arrival rate
and b the chance that a busy period holds no job longer than x,

.. math:: b = E[e^{-\lambda S (1-b)};\, S \le x], \qquad
   P(\text{busy},\, X_{\text{now}} \le x) = (1-\rho)\,(F - b)/q,

and the mean of W on that event follows from the same killed busy period (its Laplace transform is
:math:`\lambda(1-\rho)(\hat S(\theta) - b)/(\lambda - \theta - \lambda\hat S(\theta))`, with
:math:`\hat S` taken over the short jobs):

.. math:: E[W;\, X_{\text{now}} \le x] = (1-\rho)\,\bigl[\mu/q - (F-b)(1-\lambda\mu)/(\lambda q^2)
   \bigr], \qquad \mu = E[S;\, S\le x].

Earlier busy periods form a Poisson stream in idle time, so none of them reaches x with chance
:math:`\exp(-\lambda (k-1) \int_x^\infty (1-b))`.

Several rows behind one line are treated as rows of their own whose load is the chance C of
waiting: a job extends the run of its row only when it had to wait.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf

_NEWTON_STEPS = 10
_SMALL = 1e-6


@pytree
class Ahead:
    """The longest job ahead as a function of its size, over the edges of the size bins.

    Times are in units of the mean service time. Leaves have the edges first, ``(e, *c)``.

    Attributes:
      cdf: P(X_now <= edge) in a busy row.
      wait: mean wait on that event.
      reach: integral of ``1 - b`` from the edge upwards.
    """

    cdf: Leaf
    wait: Leaf
    reach: Leaf


def ahead(
    edges: Float[Array, "e *c"],
    sizes: Float[Array, "q *c"],
    shares: Float[Array, "q *c"],
    load: Float[Array, "*c"],
) -> Ahead:
    """What an arrival finds ahead of it in one row.

    Args:
      edges: edges of the size bins, ascending, one more than bins.
      sizes: mean size in each bin; their overall mean is 1.
      shares: probability of each bin.
      load: of the row, in (0, 1).
    """
    one = jnp.ones_like(load)
    index = jnp.arange(edges.shape[0])[:, None]
    below = index > jnp.arange(sizes.shape[0])[None, :]  # (edge, bin): the bin lies below the edge
    below = jnp.reshape(below, (*below.shape, *([1] * jnp.ndim(load))))
    weight = jnp.where(below, shares[None], 0.0)
    short = jnp.sum(weight, axis=1)
    mu = jnp.sum(weight * sizes[None], axis=1)

    def newton(_, b):
        term = weight * jnp.exp(-load * sizes[None] * (1.0 - b[:, None]))
        value = jnp.sum(term, axis=1) - b
        slope = jnp.sum(term * sizes[None], axis=1) * load - 1.0
        return jnp.clip(b - value / jnp.minimum(slope, -1e-4), 0.0, 1.0)

    b = lax.fori_loop(0, _NEWTON_STEPS, newton, 0.5 * short * one)
    b = b.at[-1].set(one)
    q = jnp.maximum(1.0 - short, _SMALL)
    none_longer = (1.0 - load) * (short - b) / q
    waiting = (1.0 - load) * (mu / q - (short - b) * (1.0 - load * mu) / (load * q * q))
    square = jnp.sum(shares * sizes**2, axis=0)
    last = load * square / (2.0 * (1.0 - load))
    none_longer = none_longer.at[-1].set(load * one)
    waiting = waiting.at[-1].set(last)
    steps = 0.5 * (2.0 - b[1:] - b[:-1]) * (edges[1:] - edges[:-1])
    reach = jnp.concatenate([jnp.cumsum(steps[::-1], axis=0)[::-1], 0.0 * b[-1:]])
    return Ahead(
        cdf=lax.cummax(jnp.clip(none_longer / load, 0.0, 1.0)),
        wait=lax.cummax(jnp.clip(waiting, 0.0, last)),
        reach=reach,
    )


def at_levels(
    levels: tuple[float, ...], cdf: Float[Array, "e *c"], values: Float[Array, "e *#c"]
) -> Float[Array, "l *c"]:
    """Values at which an increasing `cdf` reaches each of `levels`, linear between edges.

    The first value where the first edge already lies above a level, the last where none does.
    """
    wanted = jnp.reshape(jnp.array(levels, cdf.dtype), (-1, *([1] * (cdf.ndim - 1))))

    def climb(reached, edge):
        below, above, step = edge
        part = (wanted - below) / jnp.maximum(above - below, 1e-9)
        return reached + jnp.clip(part, 0.0, 1.0) * step, None

    # a loop, as XLA on CPUs computes what feeds a sum over a leading axis one number at a time
    start = jnp.broadcast_to(values[0], (len(levels), *cdf.shape[1:]))
    return lax.scan(climb, start, (cdf[:-1], cdf[1:], jnp.diff(values, axis=0)))[0]
