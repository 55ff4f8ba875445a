r"""The default time model: per-layer kernels fitted to measurements, host and link on top.

For each layer, with n tokens, b sequences and F, B the peaks of the accelerator:

* matrix products: ``(compute**q + weights**q) ** (1/q)``, the smooth roofline;
* activation traffic ``2 n (10 h + 1.5 (2 f + 3 heads*head_dim) / tp)`` bytes (16-bit);
* attention: compute of the attended pairs and read of the KV cache, the same smooth roofline;
* two all-reduces, ``alpha + 2 (tp-1)/tp * 2 n h / bus_bandwidth`` each;
* a launch constant.

Once per pass: the output head on b rows, the hand-over to the next stage, host time per sequence.
The host prepares a pass while the GPU runs the one before, so a pass takes the smooth maximum
(exponent r) of GPU time and the host's floor.

Sources: the form and its constants are least-squares fits to the operator and engine measurements
published with Vidur (MLSys 2024), Splitwise (ISCA 2024) and DistServe (OSDI 2024); errors and
provenance stand in ``profiles/default.toml`` and the docs.

Ignores: the kink of measured prefill above 2048 tokens at tp > 2, wave quantisation, expert
imbalance, the all-to-all of expert parallelism.
"""

import math

from fluidserve._numerics import minimum, p_norm
from fluidserve._pytree import pytree
from fluidserve._typing import Leaf, Number
from fluidserve.specs.hardware import GpuSpec
from fluidserve.specs.model import BYTES_PER_VALUE, ModelSpec
from fluidserve.timing.kv import token_bytes
from fluidserve.timing.model import AbstractTimeModel, Work
from fluidserve.timing.profile import LayerConstants
from fluidserve.timing.weights import touched_experts, weight_bytes_split

_ACTIVATION_BYTES = 2.0


@pytree
class LayerTimes(AbstractTimeModel):
    """Coefficients of the per-layer model for the slowest stage of an instance; times in s.

    Attributes:
      gemm_per_token: compute of the layers' matrix products, per new token.
      weights: read of the weights every token needs.
      expert_weights: read of all routed experts.
      expert_miss: chance that one token leaves an expert untouched.
      head_per_row: compute of the output head, per sequence.
      head_weights: read of the output head.
      gemm_norm: exponent q of the smooth roofline.
      per_token_traffic: activation traffic, per new token.
      per_pair: attention compute, per attended pair.
      per_kv_token: read or write of one token's KV.
      communication: latency of the collectives and of the hop to the next stage.
      communication_per_token: their transfer, per new token.
      launch: kernel launches of a pass.
      prompt_launch: what launches cost more when the pass holds a prompt.
      host_floor: host time of a decode pass.
      host_floor_prompt: what it takes more when the pass holds a prompt.
      host_norm: exponent r that joins GPU and host time.
      host_per_sequence: host time of each sequence, never hidden.
    """

    gemm_per_token: Leaf
    weights: Leaf
    expert_weights: Leaf
    expert_miss: Leaf
    head_per_row: Leaf
    head_weights: Leaf
    gemm_norm: Leaf
    per_token_traffic: Leaf
    per_pair: Leaf
    per_kv_token: Leaf
    communication: Leaf
    communication_per_token: Leaf
    launch: Leaf
    prompt_launch: Leaf
    host_floor: Leaf
    host_floor_prompt: Leaf
    host_norm: Leaf
    host_per_sequence: Leaf

    def stage_time(self, work: Work) -> Number:
        """Time of one stage, s."""
        has_prompt = minimum(work.prompts, 1.0)
        read = self.weights + self.expert_weights * touched_experts(self.expert_miss, work.new)
        gemm = p_norm(self.gemm_per_token * work.new, read, self.gemm_norm)
        head = p_norm(self.head_per_row * work.sequences, self.head_weights, self.gemm_norm)
        attention = p_norm(
            self.per_pair * work.attended,
            self.per_kv_token * (work.kv_read + work.new),
            self.gemm_norm,
        )
        per_token = self.per_token_traffic + self.communication_per_token
        fixed = self.communication + self.launch + self.prompt_launch * has_prompt
        gpu = gemm + head + attention + per_token * work.new + fixed
        host = self.host_floor + self.host_floor_prompt * has_prompt
        return p_norm(gpu, host, self.host_norm) + self.host_per_sequence * work.sequences


def layer_times(
    model: ModelSpec, gpu: GpuSpec, *, tp: int, pp: int, constants: LayerConstants
) -> LayerTimes:
    """Coefficients of one instance.

    Args:
      model: the model.
      gpu: the accelerator.
      tp: tensor-parallel degree, within a node.
      pp: pipeline stages; the slowest holds ``ceil(layers / pp)`` layers and the output head.
      constants: fitted constants of this accelerator.
    """
    layers = math.ceil(model.layers / pp)
    share = layers / model.layers / tp
    usual = layers * model.sublayers / (2.0 * model.layers)  # blocks of two parts each
    flop_rate = float(gpu.flop_rate("bfloat16")) * constants.gemm_efficiency
    quick_rate = float(gpu.flop_rate(model.compute_dtype)) * constants.gemm_efficiency
    saved = 2.0 * model.compute_parameters * (1.0 / flop_rate - 1.0 / quick_rate)
    bandwidth = float(gpu.bandwidth)
    weight_bandwidth = bandwidth * constants.weight_read_efficiency
    fixed_bytes, expert_bytes = weight_bytes_split(model)
    outside_layers = model.head_parameters + model.embedding_parameters
    body_bytes = fixed_bytes - model.outside_bytes
    body_active = model.active_parameters - outside_layers

    width = 10.0 * model.hidden
    width += 1.5 * (2.0 * model.intermediate + 3.0 * model.heads * model.head_dim) / tp
    reduce_bytes = _ACTIVATION_BYTES * model.hidden * 2.0 * (tp - 1) / tp
    reduces = 2.0 * usual if tp > 1 else 0.0
    hop_bandwidth = _hop_bandwidth(gpu, tp=tp, pp=pp)
    hops = 1.0 if pp > 1 else 0.0
    attention_rate = float(gpu.flop_rate("bfloat16")) * constants.attention_efficiency
    return LayerTimes(
        gemm_per_token=(2.0 * body_active + model.state_flop) * share / flop_rate - saved * share,
        weights=body_bytes * share / weight_bandwidth,
        expert_weights=expert_bytes * share / weight_bandwidth,
        expert_miss=1.0 - model.experts_per_token / model.experts if model.experts else 0.5,
        head_per_row=2.0 * model.head_parameters / tp / flop_rate,
        head_weights=BYTES_PER_VALUE["bfloat16"] * model.head_parameters / tp / weight_bandwidth,
        gemm_norm=constants.gemm_norm,
        per_token_traffic=_ACTIVATION_BYTES
        * width
        * usual
        / (bandwidth * constants.activation_efficiency),
        per_pair=model.attention_flop * share / attention_rate,
        per_kv_token=token_bytes(model, tp) * share / (bandwidth * constants.kv_read_efficiency),
        communication=reduces * constants.all_reduce_latency + hops * constants.hop_latency,
        communication_per_token=reduces
        * reduce_bytes
        / (float(gpu.scale_up_bandwidth) * constants.all_reduce_efficiency)
        + hops * _ACTIVATION_BYTES * model.hidden / hop_bandwidth,
        launch=usual * (constants.layer_launch + constants.attention_launch),
        prompt_launch=usual * constants.prompt_attention_launch,
        host_floor=constants.host_floor / pp,
        host_floor_prompt=(constants.host_floor_prompt - constants.host_floor) / pp,
        host_norm=constants.host_norm,
        host_per_sequence=constants.host_per_sequence,
    )


def _hop_bandwidth(gpu: GpuSpec, *, tp: int, pp: int) -> float:
    """Link between stages: scale-up inside a node, the GPUs' part of the network beyond, B/s."""
    if tp * pp <= gpu.gpus_per_node:
        return float(gpu.scale_up_bandwidth)
    return float(gpu.scale_out_bandwidth) / gpu.gpus_per_node * tp
