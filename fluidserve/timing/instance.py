"""An instance as both paths see it: step times and room for KV; and the system made of them."""

from fluidserve._pytree import pytree, static
from fluidserve._typing import Leaf, Number
from fluidserve.specs.deployment import Dispatch, KvPolicy
from fluidserve.specs.hardware import GpuSpec
from fluidserve.specs.model import ModelSpec
from fluidserve.timing.kv import KvShape, kv_shape, token_bytes
from fluidserve.timing.layers import layer_times
from fluidserve.timing.model import (
    AbstractTimeModel,
    Work,
    chunk_work,
    decode_work,
    prefill_work,
)
from fluidserve.timing.paper import paper_times
from fluidserve.timing.polynomial import PolynomialConstants, polynomial_times
from fluidserve.timing.profile import FirstToken, LayerConstants, Profile


@pytree
class Instance:
    """One copy of the model on `tp` x `pp` GPUs.

    Attributes:
      times: time model of one of its stages.
      pp: pipeline stages.
      kv_capacity: tokens whose KV cache fits beside the weights; not positive when the weights
        alone do not fit.
      kv: what a request holds and reads of its tokens; None where every layer keeps and attends
        all of them.
      expert_spread: routed experts over those that a token uses; 0 without experts.
      curved: whether there are experts: below `expert_spread` requests a step grows ever more
        slowly with each, as they use more experts in common.
    """

    times: AbstractTimeModel
    pp: Leaf
    kv_capacity: Leaf
    kv: KvShape | None = None
    expert_spread: Leaf = 0.0
    curved: bool = static(default=False)

    def prefill_work(self, n_in: Number, prefix_hit: Number | None = None) -> Work:
        """One prompt of `n_in` tokens, the share `prefix_hit` of them cached; None without."""
        if self.kv is None:
            return prefill_work(n_in, prefix_hit)
        return self.kv.prefill_work(n_in, prefix_hit)

    def prefill_time(self, n_in: Number, prefix_hit: Number | None = None) -> Number:
        """Time of one stage for one prompt, s; a pass through the stages takes `pp` times that."""
        return self.times.stage_time(self.prefill_work(n_in, prefix_hit))

    def chunk_work(self, before: Number, new: Number) -> Work:
        """A piece of `new` tokens of a prompt, `before` tokens of which are computed already."""
        if self.kv is None:
            return chunk_work(before, new)
        return self.kv.chunk_work(before, new)

    def decode_work(self, batch: Number, context: Number, windowed: Number = 0.0) -> Work:
        """One decode step.

        Args:
          batch: requests.
          context: sum of their contexts, tokens.
          windowed: sum of the same, each at most the window; counts only where there is one.
        """
        if self.kv is None:
            return decode_work(batch, context)
        return self.kv.decode_work(batch, context, windowed)

    def decode_time(self, batch: Number, context: Number, windowed: Number = 0.0) -> Number:
        """Time of one stage for one decode step, s."""
        return self.times.stage_time(self.decode_work(batch, context, windowed))


@pytree
class System:
    """A disaggregated deployment, ready to be evaluated or simulated.

    Attributes:
      prefill: each prefill instance.
      decode: each decode instance.
      n_prefill: prefill instances.
      n_decode: decode instances.
      kv_bytes_per_token: bytes to hand over per token that a prompt holds.
      link_bandwidth: of the one link between the pools, one direction, B/s; may be ``inf``.
      handover_overhead: fixed time of one transfer, outside the link's queue, s.
      max_batch: most requests that a decode instance holds at once.
      prefill_batch: most prompts that a prefill instance computes together.
      prefill_tokens: most tokens that it computes together when there are several prompts; a
        longer prompt is computed by itself. None for any number.
      first_token: ``prefill``: the first token leaves at the end of prefill, and hand-over and
        slot wait count in TPOT. ``decode``: it leaves after hand-over, slot wait and the first
        decode step, and they count in TTFT.
      dispatch: how requests are spread over the instances of both pools.
      prefix_hit: share of every prompt's tokens that prefill finds in its prefix cache; None
        without one. Memory and hand-over are those of whole prompts.
      kv: what of its tokens a prompt hands over; None for all.
    """

    prefill: Instance
    decode: Instance
    n_prefill: Leaf
    n_decode: Leaf
    kv_bytes_per_token: Leaf
    link_bandwidth: Leaf
    handover_overhead: Leaf
    max_batch: Leaf
    prefill_batch: int = static(default=1)
    prefill_tokens: Leaf | None = None
    first_token: FirstToken = static(default="prefill")
    dispatch: Dispatch = static(default="shared")
    prefix_hit: Leaf | None = None
    kv: KvShape | None = None


@pytree
class AggregatedSystem:
    """A deployment whose instances do both phases, ready to be evaluated or simulated.

    Without a token budget an iteration is either prompts, which go first, or a decode step of all
    requests. With one, an iteration holds one token of every decoding request and as many prompt
    tokens, in order of arrival and split where needed, as the budget leaves.

    Attributes:
      instance: each instance.
      replicas: instances.
      max_batch: most requests that an instance holds at once.
      prefill_tokens: without a token budget, most prompt tokens of one iteration; a longer prompt
        is computed by itself.
      token_budget: most tokens of one iteration; None where prompts go first.
      dispatch: how requests are spread over the instances.
      kv_policy: what of its KV a request needs before it is admitted.
      prefix_hit: share of every prompt's tokens found in the prefix cache; None without one.
    """

    instance: Instance
    replicas: Leaf
    max_batch: Leaf
    prefill_tokens: Leaf
    token_budget: Leaf | None = None
    dispatch: Dispatch = static(default="shared")
    kv_policy: KvPolicy = static(default="reserve")
    prefix_hit: Leaf | None = None


def kv_capacity(
    model: ModelSpec, gpu: GpuSpec, *, tp: int, pp: int, profile: Profile, utilization: float
) -> float:
    """Tokens of KV, of all attention layers, that fit on an instance after its weights.

    The engine takes `utilization` of the memory of every GPU; weights are spread evenly. Where
    `tp` exceeds the KV heads, heads are stored more than once.

    Returns:
      tokens, not rounded; zero or below when the weights alone do not fit.
    """
    memory = gpu.memory if profile.memory_of == "datasheet" else gpu.usable_memory
    free = tp * pp * utilization * memory - model.weight_bytes
    return float(free / token_bytes(model, tp))


def build_instance(
    model: ModelSpec, gpu: GpuSpec, *, tp: int, pp: int, profile: Profile, utilization: float
) -> Instance:
    """The instance of `model` on ``tp * pp`` GPUs under a profile."""
    constants = profile.constants_for(gpu.name)
    if isinstance(constants, LayerConstants):
        times = layer_times(model, gpu, tp=tp, pp=pp, constants=constants)
    elif isinstance(constants, PolynomialConstants):
        times = polynomial_times(model.name, tp=tp, pp=pp, constants=constants)
    else:
        times = paper_times(model, gpu, tp=tp, pp=pp, constants=constants)
    capacity = kv_capacity(model, gpu, tp=tp, pp=pp, profile=profile, utilization=utilization)
    return Instance(
        times=times,
        pp=float(pp),
        kv_capacity=capacity,
        kv=kv_shape(model, tp),
        expert_spread=model.experts / model.experts_per_token if model.experts else 0.0,
        curved=bool(model.experts),
    )
