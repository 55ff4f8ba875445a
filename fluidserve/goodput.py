"""Goodput: the largest arrival rate at which the target share of the requests meets the SLO."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fluidserve._typing import Leaf

_STEPS = 24
_VANISHING = 1e-4


def bisect_rate(
    evaluate: Callable[[Float[Array, "*c"], Leaf], Any],
    attainment: Callable[[Any], Float[Array, "*c"]],
    target: Leaf,
    upper: Float[Array, "*c"],
    *,
    then: tuple[tuple[float, float], ...] = (),
) -> tuple[Float[Array, "*c"], list[Any]]:
    """Largest rate in ``[0, upper]`` that meets the target, and evaluations around it.

    All evaluations, those of the bisection and those wanted afterwards, run through one loop body,
    so that the model is compiled once.

    Args:
      evaluate: the model at a rate and with the limits of the SLO scaled by a factor, any pytree of
        arrays.
      attainment: picks the share of requests that meet the SLO out of it; it must fall with the
        rate.
      target: least share wanted.
      upper: rate above which nothing can be sustained, 1/s.
      then: evaluations wanted afterwards, as factors on the rate found and on the limits. Where the
        rate found is 0, a vanishing rate stands for it.

    Returns:
      the rate, 1/s, to a part in 2**24 of `upper`, 0 where even a vanishing rate misses the
      target; and one evaluation for each entry of `then`.
    """
    zero = jnp.zeros_like(upper)
    kept = [
        jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(evaluate, upper, 1.0))
    ]
    kept = kept * len(then)
    factors = jnp.array(then) if then else jnp.ones((1, 2))

    def body(i, carry):
        low, high, kept = carry
        found = jnp.where(low > 0.0, low, _VANISHING * upper)
        after = jnp.maximum(i - _STEPS, 0)
        searching = i < _STEPS
        on_rate, on_limits = factors[after]
        rate = jnp.where(searching, 0.5 * (low + high), found * on_rate)
        result = evaluate(rate, jnp.where(searching, 1.0, on_limits))
        met = attainment(result) >= target
        kept = [
            jax.tree.map(lambda new, old, j=j: jnp.where(i == _STEPS + j, new, old), result, old)
            for j, old in enumerate(kept)
        ]
        low = jnp.where(searching & met, rate, low)
        high = jnp.where(searching & ~met, rate, high)
        return low, high, kept

    low, _, kept = lax.fori_loop(0, _STEPS + len(then), body, (zero, upper, kept))
    return low, kept


def largest_meeting(
    attainment: Callable[[Float[Array, "*c"]], Float[Array, "*c"]],
    target: Leaf,
    upper: Float[Array, "*c"],
) -> Float[Array, "*c"]:
    """Largest rate in ``[0, upper]`` whose attainment is at least `target`, by bisection.

    Attainment must fall with the rate. The derivative follows from the implicit function theorem,
    ``dR = -(dA/dparameters) / (dA/dR)`` at the root, whatever the bisection did.

    Args:
      attainment: share of requests that meet the SLO as a function of the rate, 1/s.
      target: least share wanted.
      upper: rate above which nothing can be sustained, 1/s.

    Returns:
      the rate, 1/s, to a part in 2**24 of `upper`; 0 where even a vanishing rate misses the target.
      Gradients are finite everywhere, 0 where goodput is 0 or at `upper`.
    """

    vanishing = lax.stop_gradient(_VANISHING * upper)

    def excess(rate):
        # at a rate of 0 nothing is defined; there a constant stands for it, so that the slope is 0
        return attainment(jnp.where(rate > 0.0, rate, vanishing)) - target

    def solve(f, _):
        return bisect_rate(lambda rate, _: f(rate), lambda x: x, 0.0, upper)[0]

    def tangent_solve(g, y):
        # g is linear and acts on each candidate by itself: divide by its slope, guarded
        slope = g(jnp.ones_like(y))
        steep = jnp.abs(slope) > 1e-9
        return jnp.where(steep, y / jnp.where(steep, slope, 1.0), 0.0)

    return lax.custom_root(excess, jnp.zeros_like(upper), solve, tangent_solve)
