"""Type aliases shared by all modules.

`Leaf` is a number or an array of any shape on the field of a pytree: what a candidate holds as a
float, a million candidates hold as an array. Type checkers see an array; at run time anything is
let through, because JAX also puts axis numbers, shapes and tracers there.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax

    Leaf = jax.Array | float
else:
    Leaf = Any

Number = Any
"""A Python float, a NumPy array or a JAX array; formulas over it use operators only."""
