"""Small numerical tools, written for Python floats, NumPy and JAX arrays alike."""

import numpy as np

from fluidserve._typing import Number


def maximum(a: Number, b: Number) -> Number:
    """Larger of two numbers or arrays; no JAX call when both are plain numbers."""
    if isinstance(a, float | int) and isinstance(b, float | int):
        return a if a >= b else b
    if isinstance(a, np.ndarray | float | int) and isinstance(b, np.ndarray | float | int):
        return np.maximum(a, b)
    import jax.numpy as jnp

    return jnp.maximum(a, b)


def minimum(a: Number, b: Number) -> Number:
    """Smaller of two numbers or arrays; the mirror of `maximum`."""
    return -maximum(-a, -b)


def p_norm(a: Number, b: Number, p: Number) -> Number:
    r"""Smooth maximum :math:`(a^p + b^p)^{1/p}` of two non-negative numbers, not both zero.

    Scaled by the larger one, so that it neither overflows nor underflows in float32. It lies
    between ``max(a, b)`` and ``a + b``.
    """
    top = maximum(a, b)
    ratio = minimum(a, b) / top
    return top * (1.0 + ratio**p) ** (1.0 / p)
