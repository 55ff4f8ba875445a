"""All tests run in float64; those of the narrow default leave it with ``jax.enable_x64(False)``."""

from fluidserve.runtime import set_precision

set_precision("f64")
