"""Assertions for code that computes with JAX: how often it compiles, and that no number is NaN."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


class CountTraces:
    """A function, jitted, that counts how often JAX runs its Python body.

    Every run of the body is one more compilation, so a count of 1 over many calls shows that
    their arguments share one program. It counts by itself and uses no private part of JAX.

    Attributes:
      traces: runs of the body so far.

    Example:
      >>> double = CountTraces(lambda x: 2 * x)
      >>> float(double(1.0)), float(double(2.0)), double.traces
      (2.0, 4.0, 1)
      >>> double(np.ones(3)).shape, double.traces
      ((3,), 2)
    """

    def __init__(self, function: Callable[..., Any], **jit_options: Any):
        """Wraps `function`; `jit_options` go to `jax.jit`."""
        self.traces = 0

        @functools.wraps(function)
        def body(*args: Any, **kwargs: Any) -> Any:
            self.traces += 1
            return function(*args, **kwargs)

        self._jitted = jax.jit(body, **jit_options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the jitted function."""
        return self._jitted(*args, **kwargs)


def assert_no_nan(tree: Any, *, infinite: bool = False) -> None:
    """Raises an AssertionError that names the leaves of a pytree that hold NaN.

    Args:
      tree: any pytree of numbers and arrays.
      infinite: whether infinities are fine.

    Example:
      >>> assert_no_nan({"wait": np.array([0.0, np.inf])}, infinite=True)
    """
    wrong = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        values = np.asarray(leaf)
        bad = np.isnan(values) if infinite else ~np.isfinite(values)
        if bad.any():
            where = jax.tree_util.keystr(path) or "the value"
            wrong.append(f"{where}: {int(bad.sum())} of {bad.size}, first at {np.argwhere(bad)[0]}")
    if wrong:
        kind = "NaN" if infinite else "not finite"
        raise AssertionError(f"{kind}: " + "; ".join(wrong))
