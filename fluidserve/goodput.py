"""Goodput: the largest arrival rate at which the target share of the requests meets the SLO."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fluidserve._typing import Leaf


class Then(NamedTuple):
    """An evaluation wanted once the root is found.

    Attributes:
      rate: the rate to evaluate at, as a function of the rate found.
      on_limits: factor on the limits of the SLO.
      keep: what of the evaluation is wanted.
    """

    rate: Callable[[Any], Any]
    on_limits: float
    keep: Callable[[Any], Any]


_BISECTIONS = 7
_SECANTS = 8
_VANISHING = 1e-4
_TIGHT = 2e-4
_MISSED = 5e-4
"""How far below the target attainment may be at a rate that still counts as the root."""


def root_rate(
    evaluate: Callable[[Float[Array, "*c"], Leaf], Any],
    attainment: Callable[[Any], Float[Array, "*c"]],
    target: Leaf,
    upper: Float[Array, "*c"],
    *,
    then: tuple[Then, ...] = (),
) -> tuple[Float[Array, "*c"], list[Any]]:
    """Largest rate in ``[0, upper]`` that meets the target, and evaluations around it.

    A vanishing rate first, then bisection, then regula falsi with the Illinois rule. The root is
    tried as well: where it misses the target because attainment jumps, the last rate that met the
    target takes its place. All evaluations, also those wanted afterwards, run through one loop
    body, so that the model is compiled once.

    Args:
      evaluate: the model at a rate and with the limits of the SLO scaled by a factor, any pytree of
        arrays.
      attainment: picks the share of requests that meet the SLO out of it; it must fall with the
        rate.
      target: least share wanted.
      upper: rate above which nothing can be sustained, 1/s.
      then: evaluations wanted afterwards; a vanishing rate stands for a rate found to be 0.

    Returns:
      the rate, 1/s, to 1e-5 of `upper` where attainment is smooth and 1e-3 where it jumps, with an
      attainment of at least ``target - 5e-4``; 0 where even a ten-thousandth of `upper` misses
      the target; and one evaluation for each entry of `then`.
    """
    evaluate = jax.jit(evaluate)  # traced once for the shapes and for the loop
    shapes = jax.eval_shape(evaluate, upper, jnp.ones((), upper.dtype))
    blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), [t.keep(shapes) for t in then])
    on_limits = jnp.array([t.on_limits for t in then] or [1.0], upper.dtype)
    searches = 1 + _BISECTIONS + _SECANTS + 1
    lowest = _VANISHING * upper

    def secant(low, high, over, under):
        return low + (high - low) * over / (over - under)

    def best(low, high, over, under):
        # where attainment jumps, the end of the bracket that still meets the target
        tight = high - low < _TIGHT * high
        root = jnp.where(tight, low, secant(low, high, over, under))
        return jnp.where(over > 0.0, root, 0.0)

    def body(i, carry):
        low, high, over, under, kept = carry
        found = best(low, high, over, under)
        found = jnp.where(found > 0.0, found, lowest)
        wanted = jnp.stack([t.rate(found) for t in then] or [found])
        extra = jnp.maximum(i - searches, 0)
        middle = jnp.where(i <= _BISECTIONS, 0.5 * (low + high), secant(low, high, over, under))
        last = i == searches - 1
        probe = jnp.where(i == 0, lowest, jnp.where(last, found, middle))
        searching = i < searches
        rate = jnp.where(searching, probe, wanted[extra])
        result = evaluate(rate, jnp.where(searching, 1.0, on_limits[extra]))
        excess = attainment(result) - target
        met = excess >= 0.0
        # the end that stays loses half its weight, so that the other end moves too
        halved = jnp.where(i > _BISECTIONS, 0.5, 1.0)
        met = met & ((i == 0) | (over > 0.0))  # a vanishing rate that misses ends the search
        up, down = searching & met, searching & ~met
        first_miss = down & (i == 0)  # nothing meets the target: keep `over` at zero
        kept = [
            jax.tree.map(lambda new, old, j=j: jnp.where(i == searches + j, new, old), new, old)
            for j, (new, old) in enumerate(zip((t.keep(result) for t in then), kept, strict=True))
        ]
        low = jnp.where(up | (last & (over > 0.0) & (excess >= -_MISSED)), rate, low)
        high = jnp.where(down & ~first_miss, rate, high)
        return (
            low,
            jnp.where(last, low, high),
            jnp.where(up, jnp.maximum(excess, 1e-9), jnp.where(down, over * halved, over)),
            jnp.where(down & ~first_miss, excess, jnp.where(up, under * halved, under)),
            kept,
        )

    start = (0.0 * upper, upper, 0.0 * upper, 0.0 * upper - 1.0, blank)
    low, high, over, under, kept = lax.fori_loop(0, searches + len(then), body, start)
    return best(low, high, over, under), kept


def largest_meeting(
    attainment: Callable[[Float[Array, "*c"]], Float[Array, "*c"]],
    target: Leaf,
    upper: Float[Array, "*c"],
) -> Float[Array, "*c"]:
    """Largest rate in ``[0, upper]`` whose attainment is at least `target`, by bracketing.

    Attainment must fall with the rate. The derivative follows from the implicit function theorem,
    ``dR = -(dA/dparameters) / (dA/dR)`` at the root, whatever the search did.

    Args:
      attainment: share of requests that meet the SLO as a function of the rate, 1/s.
      target: least share wanted.
      upper: rate above which nothing can be sustained, 1/s.

    Returns:
      the rate, 1/s; 0 where even a vanishing rate misses the target.
      Gradients are finite everywhere, 0 where goodput is 0 or at `upper`.
    """
    vanishing = lax.stop_gradient(_VANISHING * upper)

    def excess(rate):
        # at a rate of 0 nothing is defined; there a constant stands for it, so that the slope is 0
        return attainment(jnp.where(rate > 0.0, rate, vanishing)) - target

    def solve(f, _):
        return root_rate(lambda rate, _: f(rate), lambda x: x, 0.0, upper)[0]

    def tangent_solve(g, y):
        # g is linear and acts on each candidate by itself: divide by its slope, guarded
        slope = g(jnp.ones_like(y))
        steep = jnp.abs(slope) > 1e-9
        return jnp.where(steep, y / jnp.where(steep, slope, 1.0), 0.0)

    return lax.custom_root(excess, jnp.zeros_like(upper), solve, tangent_solve)
