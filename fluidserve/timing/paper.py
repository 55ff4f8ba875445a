r"""The time model of the lecture: the larger of compute and memory time, plus a constant.

.. math::
   t = \max\bigl(c\,(n + n_0) + a\,A,\; w + r\,(K + n)\bigr) / (S\,pp) + t_0

with n new tokens, A attended pairs, K tokens of KV read and S(tp) the speed-up of tensor
parallelism. Constants in ``profiles/paper.toml``.

Ignores: collectives (folded into S), activation traffic, host time, the output head.
"""

import math

from fluidserve._numerics import maximum
from fluidserve._pytree import pytree
from fluidserve._typing import Leaf, Number
from fluidserve.specs.hardware import GpuSpec
from fluidserve.specs.model import ModelSpec
from fluidserve.timing.kv import token_bytes
from fluidserve.timing.model import AbstractTimeModel, Work
from fluidserve.timing.profile import PaperConstants
from fluidserve.timing.weights import touched_experts, weight_bytes_split


@pytree
class PaperTimes(AbstractTimeModel):
    """Coefficients of the lecture's model for one stage; times in s.

    Attributes:
      per_token: compute of one new token.
      token_offset: tokens that the efficiency loss of short batches amounts to.
      per_pair: compute of one attended pair.
      weights: read of the weights every token needs.
      expert_weights: read of all routed experts.
      expert_miss: chance that one token leaves an expert untouched.
      per_kv_token: read or write of one token's KV.
      overhead: fixed time of a pass.
    """

    per_token: Leaf
    token_offset: Leaf
    per_pair: Leaf
    weights: Leaf
    expert_weights: Leaf
    expert_miss: Leaf
    per_kv_token: Leaf
    overhead: Leaf

    def sides(self, work: Work) -> tuple[Number, Number]:
        """Time of computing and time of reading, of which the larger one counts, s."""
        compute = self.per_token * (work.new + self.token_offset) + self.per_pair * work.attended
        read = self.weights + self.expert_weights * touched_experts(self.expert_miss, work.new)
        memory = read + self.per_kv_token * (work.kv_read + work.new)
        return compute, memory

    def stage_time(self, work: Work) -> Number:
        """Time of one stage, s."""
        compute, memory = self.sides(work)
        return maximum(compute, memory) + self.overhead


def paper_times(
    model: ModelSpec, gpu: GpuSpec, *, tp: int, pp: int, constants: PaperConstants
) -> PaperTimes:
    """Coefficients of one instance.

    Args:
      model: the model.
      gpu: the accelerator.
      tp: tensor-parallel degree; the speed-up is ``tp_speedup ** log2(tp)``.
      pp: pipeline stages; each takes ``1 / pp`` of the work and its own overhead.
      constants: efficiencies of the profile.
    """
    share = 1.0 / (constants.tp_speedup ** math.log2(tp) * pp)
    flop_rate = float(gpu.flop_rate(model.compute_dtype)) * constants.compute_efficiency
    bandwidth = float(gpu.bandwidth) * constants.memory_efficiency
    fixed, experts = weight_bytes_split(model)
    return PaperTimes(
        per_token=model.flop_per_token / flop_rate * share,
        token_offset=constants.token_offset,
        per_pair=model.attention_flop / flop_rate * share,
        weights=fixed / bandwidth * share,
        expert_weights=experts / bandwidth * share,
        expert_miss=1.0 - model.experts_per_token / model.experts if model.experts else 0.5,
        per_kv_token=token_bytes(model) / bandwidth * share,
        overhead=constants.overhead,
    )
