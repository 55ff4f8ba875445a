"""Small numerical tools, written for Python floats, NumPy and JAX arrays alike."""

import functools

import numpy as np

from fluidserve._typing import Number

_LEAST_BASE = 1e-18
_PLAIN = (float, int)
_EAGER = (np.ndarray, float, int)


def maximum(a: Number, b: Number) -> Number:
    """Larger of two numbers or arrays; no JAX call when both are plain numbers."""
    if isinstance(a, _PLAIN) and isinstance(b, _PLAIN):
        return a if a >= b else b
    if isinstance(a, _EAGER) and isinstance(b, _EAGER):
        return np.maximum(a, b)
    import jax.numpy as jnp

    return jnp.maximum(a, b)


def minimum(a: Number, b: Number) -> Number:
    """Smaller of two numbers or arrays; the mirror of `maximum`."""
    return -maximum(-a, -b)


def p_norm(a: Number, b: Number, p: Number) -> Number:
    r"""Smooth maximum :math:`(a^p + b^p)^{1/p}` of two non-negative numbers; 0 for two zeros.

    Scaled by the larger one, so that it neither overflows nor underflows in float32. It lies
    between ``max(a, b)`` and ``a + b``. Plain numbers take a short way: the event simulator asks
    for several at every iteration.
    """
    if isinstance(a, _PLAIN) and isinstance(b, _PLAIN) and isinstance(p, _PLAIN):
        if a < b:
            a, b = b, a
        return a * (1.0 + (b / a) ** p) ** (1.0 / p) if a > 0.0 else 0.0
    top = maximum(a, b)
    smaller = power(ratio(minimum(a, b), _or_one(top)), p)
    return top * power(1.0 + smaller, 1.0 / p)


def _or_one(x: Number) -> Number:
    """A non-negative number to divide by; 1 in place of 0."""
    if isinstance(x, _EAGER):
        return np.where(x > 0.0, x, 1.0)
    import jax.numpy as jnp

    return jnp.where(x > 0.0, x, 1.0)


def ratio(a: Number, b: Number) -> Number:
    """``a / b`` for tiny `b` as well, where the derivatives of a plain quotient overflow.

    Those multiply by ``b**-2``, the second ones by ``b**-3``, before `a` makes them small again.
    """
    if isinstance(a, _EAGER) and isinstance(b, _EAGER):
        return a / b
    return _differentiable_ratio()(a, b)


@functools.cache
def _differentiable_ratio():
    import jax

    @jax.custom_jvp
    def quotient(a, b):
        return a / b

    @quotient.defjvp
    def _(primals, tangents):
        (a, b), (da, db) = primals, tangents
        value = a / b
        return value, (da - value * db) / b

    return quotient


def power(base: Number, exponent: Number) -> Number:
    """``base ** exponent`` for a non-negative base and a positive exponent.

    On JAX arrays by logarithm and exponential, a quarter of what a power costs there; bases below
    1e-18 count as that, so that second derivatives are finite in float32.
    """
    if isinstance(base, _EAGER) and isinstance(exponent, _EAGER):
        return base**exponent
    import jax.numpy as jnp

    return jnp.exp(exponent * jnp.log(jnp.maximum(base, _LEAST_BASE)))
