"""What a language model is, as far as serving is concerned: counts and bytes."""

from fluidserve._pytree import pytree, static
from fluidserve._typing import Leaf


@pytree
class ModelSpec:
    """A decoder-only transformer, dense or mixture-of-experts.

    Counts that can pass 2**31 are floats. Totals are over the whole model, not per GPU; the
    number formats are already chosen (`weight_dtype`, `kv_dtype`).

    Attributes:
      name: how people call it.
      architecture: the class name in its config.
      attention: ``MHA``, ``GQA``, ``MQA`` or ``MLA``; with ``+SWA`` where layers have a sliding
        window or chunks, with ``+linear`` where some have state instead of KV.
      layers: blocks, as the config counts them.
      sublayers: attention, state-space and feed-forward parts of all blocks; two per usual block.
      hidden: width of the residual stream.
      heads: query heads.
      kv_heads: key-value heads; 1 for MLA, whose latent every head shares.
      window_kv_heads: those of layers with a window, where they differ from the rest.
      head_dim: width of a query-key head.
      intermediate: feed-forward width that one token passes (all chosen experts together).
      vocab: vocabulary size.
      experts: routed experts per layer; 0 when dense.
      experts_per_token: routed experts that a token visits.
      max_positions: longest context the model was built for, tokens.
      window: tokens that layers with a sliding window (or chunks) keep and attend; 0 for none.
      sparse_tokens: tokens that sparse attention attends, all being kept; 0 for none.
      weight_dtype: number format of most weights.
      compute_dtype: format in which quantised weights are multiplied.
      kv_dtype: number format of the KV cache.
      parameters: all parameters.
      active_parameters: parameters that one token passes.
      embedding_parameters: parameters of token and position tables that are only looked up, not
        multiplied; a token table that is also the output head is not among them.
      head_parameters: parameters of the output head, counted once also when tied.
      expert_parameters: parameters of all routed experts.
      compute_parameters: parameters of `active_parameters` that are multiplied in
        `compute_dtype`; the rest is multiplied in 16 bits.
      weight_bytes: bytes of all weights.
      expert_bytes: those of the routed experts.
      outside_bytes: those of the output head and of the tables that are only looked up.
      kv_bytes_per_token: bytes of keys and values that one token leaves for good, in the layers
        that keep every token.
      kv_window_bytes: bytes of KV that a request holds once its windows are full.
      chosen_bytes_per_token: part of `kv_bytes_per_token` that is read only where sparse attention
        chooses the token.
      index_bytes_per_token: bytes of the keys that choose what sparse attention attends.
      state_bytes: bytes that a request holds whatever its length.
      attention_flop: FLOP of scores and values for one (new token, attended token) pair, over all
        layers with attention.
      limited_attention_flop: part of it in layers with a window, or over the tokens that sparse
        attention chooses.
      state_flop: FLOP per token of updating and reading state, beyond its matrix products.
      notes: what a user should know about how the config was read.
    """

    name: str = static()
    architecture: str = static()
    attention: str = static()
    layers: int = static()
    sublayers: int = static()
    hidden: int = static()
    heads: int = static()
    kv_heads: int = static()
    window_kv_heads: int = static()
    head_dim: int = static()
    intermediate: int = static()
    vocab: int = static()
    experts: int = static()
    experts_per_token: int = static()
    max_positions: int = static()
    window: int = static()
    sparse_tokens: int = static()
    weight_dtype: str = static()
    compute_dtype: str = static()
    kv_dtype: str = static()
    parameters: Leaf
    active_parameters: Leaf
    embedding_parameters: Leaf
    head_parameters: Leaf
    expert_parameters: Leaf
    compute_parameters: Leaf
    weight_bytes: Leaf
    expert_bytes: Leaf
    outside_bytes: Leaf
    kv_bytes_per_token: Leaf
    kv_window_bytes: Leaf
    chosen_bytes_per_token: Leaf
    index_bytes_per_token: Leaf
    state_bytes: Leaf
    attention_flop: Leaf
    limited_attention_flop: Leaf
    state_flop: Leaf
    notes: tuple[str, ...] = static()

    @property
    def flop_per_token(self) -> Leaf:
        """FLOP of one token outside attention, a multiply-add counted as two."""
        return 2.0 * self.active_parameters + self.state_flop

    def kv_copies(self, tp: int) -> float:
        """How many times a tensor-parallel group of `tp` GPUs stores the KV cache.

        One while every GPU has KV heads of its own; beyond that heads are replicated. The MLA
        latent is not split by heads, so every GPU holds it whole.
        """
        return max(1.0, tp / self.kv_heads)


BYTES_PER_VALUE: dict[str, float] = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5 + 2 / 128,
    "mxfp4": 0.5 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
}
"""Bytes of one number in each format, with the scales of the 4-bit ones.

A scale has 16 bits for each 128 integers, 8 bits for each 32 (MX) or 16 (NVFP4) floats.

Source: OCP Microscaling Formats (MX) Specification 1.0, 2023, section 5; for NVFP4 NVIDIA's
description of the format (2025); for integers the usual group size of AWQ (Lin et al., 2024).
"""
