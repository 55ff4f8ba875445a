"""Type aliases shared by all modules."""

from typing import Any

Leaf = Any
"""A number or an array on the field of a pytree: what one candidate holds as a float, a million
candidates hold as an array. JAX also puts axis numbers, shapes and tracers there, so nothing
narrower would be true."""

Number = Any
"""A Python float, a NumPy array or a JAX array; formulas over it use operators only."""
