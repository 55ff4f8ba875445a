"""What distinguishes one family of language models from another."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from fluidserve.io.attention import Attention, LayerRule, every_layer
from fluidserve.io.feed_forward import FeedForward
from fluidserve.io.fields import Fields

Switch = bool | str
"""A habit of the family (True, False) or the field that decides, absent meaning no."""


@dataclasses.dataclass(frozen=True)
class Family:
    """What distinguishes a family of models.

    Attributes:
      architecture: class name in ``architectures``.
      model_types: values of ``model_type`` that go with it.
      attention: which mixers its layers have.
      feed_forward: formula of its feed-forward parts.
      wrappers: class names of models with images or sound around this text model.
      blocks: how its blocks are counted; None for attention and feed-forward in every layer.
      qkv_bias: biases of the query, key and value projections.
      output_bias: bias of the attention's output projection.
      qk_norm: norms of queries and keys: ``""`` none, ``"head"`` one head wide, ``"all"`` all
        heads wide; or what decides.
      gated: whether the attention's output is gated.
      sinks: whether each head has a learned sink.
      indexed: whether an index chooses what is attended.
      derives_head_dim: an absent ``head_dim`` means hidden size / heads.
      derives_kv_heads: absent ``num_key_value_heads`` means one per query head.
      norms: norms of a layer.
      norm_vectors: vectors of a norm: 1 for a scale, 2 for scale and shift.
      extra_positions: rows of a learned position table beyond ``max_position_embeddings``; None
        when positions are not learned.
      tied: whether an absent ``tie_word_embeddings`` means a shared table.
      window: what an absent window means.
      window_field: field of the window.
      windowed: which layers have it, where ``layer_types`` does not say so.
      window_switch: whether ``use_sliding_window`` decides if the window is used.
      only: fields whose other values the formulas do not cover; absence is fine.
      uses: fields that this family understands and others refuse.
      notes: what a user should know about how the config is read.
    """

    architecture: str
    model_types: tuple[str, ...]
    attention: Callable[[Fields, "Family", int], Attention]
    feed_forward: Callable[[Fields, int], FeedForward]
    wrappers: tuple[str, ...] = ()
    blocks: Callable[[Fields], Mapping[str, int]] | None = None
    qkv_bias: Switch = False
    output_bias: Switch = False
    qk_norm: str | Callable[[Fields], str] = ""
    gated: bool = False
    sinks: bool = False
    indexed: bool = False
    derives_head_dim: bool = True
    derives_kv_heads: bool = False
    norms: int = 2
    norm_vectors: int = 1
    extra_positions: int | None = None
    tied: bool = False
    window: int | None = None
    window_field: str = "sliding_window"
    windowed: LayerRule = every_layer
    window_switch: bool = False
    only: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    uses: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
