"""An instance as both paths see it: step times and room for KV; and the system made of them."""

from fluidserve._pytree import pytree, static
from fluidserve._typing import Leaf
from fluidserve.specs.deployment import Dispatch
from fluidserve.specs.hardware import GpuSpec
from fluidserve.specs.model import ModelSpec
from fluidserve.timing.layers import layer_times
from fluidserve.timing.model import AbstractTimeModel
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
    """

    times: AbstractTimeModel
    pp: Leaf
    kv_capacity: Leaf


@pytree
class System:
    """A disaggregated deployment, ready to be evaluated or simulated.

    Attributes:
      prefill: each prefill instance.
      decode: each decode instance.
      n_prefill: prefill instances.
      n_decode: decode instances.
      kv_bytes_per_token: bytes to hand over per prompt token.
      link_bandwidth: of the one link between the pools, one direction, B/s; may be ``inf``.
      handover_overhead: fixed time of one transfer, outside the link's queue, s.
      max_batch: most requests that a decode instance holds at once.
      prefill_batch: most prompts that a prefill instance computes together.
      first_token: ``prefill``: the first token leaves at the end of prefill, and hand-over and
        slot wait count in TPOT. ``decode``: it leaves after hand-over, slot wait and the first
        decode step, and they count in TTFT.
      dispatch: how requests are spread over the instances of both pools.
      prefix_hit: share of every prompt's tokens that prefill finds in its prefix cache; None
        without one. Memory and hand-over are those of whole prompts.
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
    first_token: FirstToken = static(default="prefill")
    dispatch: Dispatch = static(default="shared")
    prefix_hit: Leaf | None = None


def kv_capacity(
    model: ModelSpec, gpu: GpuSpec, *, tp: int, pp: int, profile: Profile, utilization: float
) -> float:
    """Tokens of KV that fit on an instance after its weights.

    The engine takes `utilization` of the memory of every GPU; weights are spread evenly. Where
    `tp` exceeds the KV heads, heads are stored more than once.

    Returns:
      tokens, not rounded; zero or below when the weights alone do not fit.
    """
    memory = gpu.memory if profile.memory_of == "datasheet" else gpu.usable_memory
    free = tp * pp * utilization * memory - model.weight_bytes
    return float(free / (model.kv_bytes_per_token * model.kv_copies(tp)))


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
    return Instance(times=times, pp=float(pp), kv_capacity=capacity)
