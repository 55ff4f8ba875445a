r"""Step times as polynomials of what a batch holds: for engines that others have measured.

For one prompt or a batch of prompts with n new tokens each, and for a decode step of b requests
with contexts that add up to K tokens,

.. math::
   t_{prefill} = (a + b_1 \sum n + b_2 \sum n^2 + b_3\,\text{prompts}) / pp, \qquad
   t_{decode} = (a' + b'_1 K + b'_2 b) / pp

and to either, on each stage, :math:`s + s_1 T`, with T the new tokens of a prefill or the context
of a decode step. Coefficients hold for one model and one tensor-parallel degree; nothing is scaled
to another. Decode may have a second set of coefficients from a batch size on.

Source of the form: DistServe's simulator (Zhong et al., OSDI 2024) and the mocker of NVIDIA Dynamo
have step times of this kind. `fluidserve.timing.fit` finds coefficients.

Ignores: whatever is not measured. A second set need not meet the first where it takes over; where
the step time then falls with the batch, two batches may carry one load and the formulas find one.
"""

import dataclasses

from fluidserve._numerics import minimum
from fluidserve._pytree import pytree
from fluidserve._typing import Leaf, Number
from fluidserve.errors import InputError
from fluidserve.timing.model import AbstractTimeModel, Work

NO_BATCH = 1e9
"""A batch that nobody reaches: where there is no second set of decode coefficients."""


@dataclasses.dataclass(frozen=True)
class PrefillCoefficients:
    """Of the pass of a batch of prompts through all stages; times in s.

    Attributes:
      fixed: of a pass.
      per_token: per prompt token.
      per_token_squared: per squared length of a prompt.
      per_prompt: per prompt.
    """

    fixed: float
    per_token: float
    per_token_squared: float = 0.0
    per_prompt: float = 0.0


@dataclasses.dataclass(frozen=True)
class DecodeCoefficients:
    """Of a decode step through all stages; times in s.

    Attributes:
      fixed: of a step.
      per_context_token: per token of context, over all requests of the batch.
      per_request: per request of the batch.
      from_batch: least batch that these hold for.
    """

    fixed: float
    per_context_token: float
    per_request: float
    from_batch: float = 0.0


@dataclasses.dataclass(frozen=True)
class PolynomialConstants:
    """Coefficients of one model on one accelerator.

    Attributes:
      model: name of the model; ``*`` where the times do not depend on it.
      stage_overhead: added to every stage of a pass, s.
      stage_overhead_per_token: the same per new token of a prefill or token of context, s.
      prefill: by tensor-parallel degree.
      decode: by tensor-parallel degree, one or two sets, the one for smaller batches first.
      provenance: where the coefficients come from: ``fitted: ...`` or ``assumed: ...``.
    """

    model: str
    stage_overhead: float
    stage_overhead_per_token: float
    prefill: dict[int, PrefillCoefficients]
    decode: dict[int, tuple[DecodeCoefficients, ...]]
    provenance: str

    def degrees(self) -> list[int]:
        """Tensor-parallel degrees with coefficients for both phases."""
        return sorted(self.prefill.keys() & self.decode.keys())


@pytree
class PolynomialTimes(AbstractTimeModel):
    """Coefficients of one stage; times in s.

    Attributes:
      prefill_fixed: of a prefill.
      per_token: per new token.
      per_pair: per attended pair of a prompt, twice that per squared token.
      per_prompt: per prompt.
      decode_fixed: of a decode step.
      per_context: per token of context.
      per_request: per request.
      large_fixed: of a step of a large batch.
      large_per_context: per token of context there.
      large_per_request: per request there.
      from_batch: batch from which the latter three hold.
      overhead: of every pass.
      overhead_per_token: per new token of a prefill, per token of context of a decode step.
    """

    prefill_fixed: Leaf
    per_token: Leaf
    per_pair: Leaf
    per_prompt: Leaf
    decode_fixed: Leaf
    per_context: Leaf
    per_request: Leaf
    large_fixed: Leaf
    large_per_context: Leaf
    large_per_request: Leaf
    from_batch: Leaf
    overhead: Leaf
    overhead_per_token: Leaf

    def stage_time(self, work: Work) -> Number:
        """Time of one stage, s; a pass with a prompt counts as prefill altogether."""
        prefills = minimum(work.prompts, 1.0)
        prefill = self.prefill_fixed + self.per_token * work.new + self.per_pair * work.attended
        prefill = prefill + self.per_prompt * work.prompts
        small = self.decode_fixed + self.per_request * work.sequences
        small = small + self.per_context * work.kv_read
        large = self.large_fixed + self.large_per_request * work.sequences
        large = large + self.large_per_context * work.kv_read
        is_large = 1.0 * (work.sequences >= self.from_batch)
        decode = small + is_large * (large - small)
        tokens = prefills * work.new + (1.0 - prefills) * work.kv_read
        overhead = self.overhead + self.overhead_per_token * tokens
        return prefills * prefill + (1.0 - prefills) * decode + overhead


def polynomial_times(
    model_name: str, *, tp: int, pp: int, constants: PolynomialConstants
) -> PolynomialTimes:
    """Coefficients of one instance.

    Args:
      model_name: the model to be served.
      tp: tensor-parallel degree.
      pp: pipeline stages; each takes ``1 / pp`` of a pass, and its own overhead.
      constants: of the profile.

    Raises:
      InputError: coefficients of another model, or none for this degree.
    """
    if constants.model not in ("*", model_name):
        raise InputError(
            f"profile: its coefficients hold for {constants.model}, not for {model_name}"
        )
    if tp not in constants.degrees():
        known = ", ".join(str(x) for x in constants.degrees())
        raise InputError(f"profile: no coefficients for tp={tp}; it has {known}")
    prefill, sets = constants.prefill[tp], constants.decode[tp]
    small, large = sets[0], sets[-1]
    return PolynomialTimes(
        prefill_fixed=prefill.fixed / pp,
        per_token=prefill.per_token / pp,
        per_pair=2.0 * prefill.per_token_squared / pp,
        per_prompt=prefill.per_prompt / pp,
        decode_fixed=small.fixed / pp,
        per_context=small.per_context_token / pp,
        per_request=small.per_request / pp,
        large_fixed=large.fixed / pp,
        large_per_context=large.per_context_token / pp,
        large_per_request=large.per_request / pp,
        from_batch=large.from_batch if len(sets) > 1 else NO_BATCH,
        overhead=constants.stage_overhead,
        overhead_per_token=constants.stage_overhead_per_token,
    )
