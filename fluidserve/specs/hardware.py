"""What an accelerator and its node are: peaks, bytes, links."""

from fluidserve._pytree import pytree, static
from fluidserve._typing import Leaf


@pytree
class GpuSpec:
    """An accelerator in its usual node. SI units; links count one direction.

    Attributes:
      name: catalog name.
      gpus_per_node: GPUs that share the scale-up network.
      memory: bytes on the data sheet (80 GB = 80e9).
      usable_memory: bytes that the driver reports; an engine takes a share of these.
      bandwidth: peak memory bandwidth, B/s.
      flop_rate_16: dense peak with 16-bit floats, FLOP/s.
      flop_rate_8: dense peak with 8-bit floats, FLOP/s; equal to `flop_rate_16` where the
        hardware has none, since 8-bit weights are then multiplied in 16 bits.
      scale_up_bandwidth: link to the other GPUs of the node, per GPU and direction, B/s.
      scale_out_bandwidth: network of the whole node, per direction, B/s.
    """

    name: str = static()
    gpus_per_node: int = static()
    memory: Leaf
    usable_memory: Leaf
    bandwidth: Leaf
    flop_rate_16: Leaf
    flop_rate_8: Leaf
    scale_up_bandwidth: Leaf
    scale_out_bandwidth: Leaf

    def flop_rate(self, compute_dtype: str) -> Leaf:
        """Dense peak for products in a format, FLOP/s; all but 8-bit ones take place in 16 bits."""
        return self.flop_rate_8 if compute_dtype in ("fp8", "int8") else self.flop_rate_16
