"""FLOP per byte: what a pass asks for against what an accelerator offers (the roofline's axis).

Nominal counts, without any efficiency: where the work lies, not how long it takes.

Source: Williams, Waterman and Patterson, Roofline, Communications of the ACM 52(4), 2009.
"""

from fluidserve._typing import Number
from fluidserve.specs.hardware import GpuSpec
from fluidserve.specs.model import ModelSpec
from fluidserve.timing.kv import prompt_work, token_bytes
from fluidserve.timing.model import Work
from fluidserve.timing.weights import touched_experts, weight_bytes_split


def ridge_point(gpu: GpuSpec, compute_dtype: str = "bfloat16") -> float:
    """FLOP per byte at which an accelerator is busy computing and reading at once."""
    return float(gpu.flop_rate(compute_dtype)) / float(gpu.bandwidth)


def arithmetic_intensity(model: ModelSpec, work: Work) -> Number:
    """FLOP of a pass over the bytes of weights and KV that it moves, FLOP/B.

    Activations stay out of it. Of a mixture of experts only the touched ones are read.

    Args:
      model: the model.
      work: what the pass computes and reads.
    """
    flop = model.flop_per_token * work.new + model.attention_flop * work.attended
    fixed, experts = weight_bytes_split(model)
    miss = 1.0 - model.experts_per_token / model.experts if model.experts else 0.5
    weights = fixed + experts * touched_experts(miss, work.new)
    return flop / (weights + token_bytes(model) * (work.kv_read + work.new))


def compute_bound_length(model: ModelSpec, gpu: GpuSpec) -> int:
    """Smallest prompt whose prefill has more FLOP per byte than the ridge point, tokens.

    Raises:
      ValueError: not even a prompt of 2**20 tokens has.
    """
    ridge = ridge_point(gpu, model.compute_dtype)
    low, high = 0, 2**20
    if arithmetic_intensity(model, prompt_work(model, float(high))) <= ridge:
        raise ValueError(f"prefill of {model.name} never passes the ridge point of {gpu.name}")
    while high - low > 1:
        middle = (low + high) // 2
        beyond = arithmetic_intensity(model, prompt_work(model, float(middle))) > ridge
        low, high = (low, middle) if beyond else (middle, high)
    return high
