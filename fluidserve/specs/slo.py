"""The promise: limits on TTFT and TPOT that a share of the requests must meet together."""

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf


@pytree
class Slo:
    """Service-level objective with joint attainment as its only criterion.

    Attributes:
      ttft: limit on the time to first token, s.
      tpot: limit on the mean time per output token after the first, s.
      attainment: least share of requests that must meet both.
    """

    ttft: Leaf
    tpot: Leaf
    attainment: Leaf
