"""Which weights a pass reads: all of a dense model, the touched experts of a mixture."""

from fluidserve._numerics import power
from fluidserve._typing import Number
from fluidserve.specs.model import ModelSpec


def weight_bytes_split(model: ModelSpec) -> tuple[float, float]:
    """Bytes of the weights every pass reads, and of all routed experts."""
    return float(model.weight_bytes - model.expert_bytes), float(model.expert_bytes)


def touched_experts(miss: Number, tokens: Number) -> Number:
    """Share of the routed experts that a batch of `tokens` reads.

    With independent, uniform routing an expert is missed by one token with chance `miss` and by
    all of them with ``miss ** tokens`` (the occupancy problem). Real routing is skewed, so fewer
    experts are touched than this says.
    """
    return 1.0 - power(miss, tokens)
