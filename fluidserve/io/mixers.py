"""What mixes tokens in a layer: attention of several kinds, or state in its place.

Source of the shapes: the modelling code of each family in Hugging Face transformers, and for
DeepSeek, Nemotron and MiniMax the code published with their weights or in vLLM.
"""

import dataclasses

from fluidserve.io.fields import Fields

INDEX_KEY_BYTES = 132 / 128
"""Bytes of a number of an index key: 8-bit floats with a 32-bit scale for each 128 of them."""


@dataclasses.dataclass(frozen=True)
class Mixer:
    """The mixer of one layer.

    Attributes:
      matrices: parameters of its matrices.
      vectors: its norms, biases and other parameters that quantised checkpoints leave alone.
      kv_values: numbers that one token leaves in the cache.
      pair_flop: FLOP of scores and values for one (new token, attended token) pair.
      windowed: whether it keeps and attends the tokens of a window only.
      chosen: whether it attends only tokens that an index chooses, or those beside them.
      index_values: numbers of the index key of one token.
      index_flop: FLOP of scoring one pair.
      state_values: numbers of its state, whatever the length of the request.
      buffer_values: numbers it keeps besides in the format of the cache.
      state_flop: FLOP per token of updating and reading the state.
    """

    matrices: int
    vectors: int
    kv_values: float = 0
    pair_flop: float = 0
    windowed: bool = False
    chosen: bool = False
    index_values: float = 0
    index_flop: float = 0
    state_values: int = 0
    buffer_values: int = 0
    state_flop: float = 0


def grouped(
    hidden: int,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    qkv_bias: bool = False,
    output_bias: bool = False,
    qk_norm: str = "",
    gated: bool = False,
    sinks: bool = False,
    shared_value: bool = False,
    windowed: bool = False,
) -> Mixer:
    """Heads of their own (MHA), shared by groups (GQA) or by all (MQA).

    Args:
      hidden: width of the residual stream.
      heads: query heads.
      kv_heads: key-value heads.
      head_dim: width of a head.
      qkv_bias: biases of the query, key and value projections.
      output_bias: bias of the output projection.
      qk_norm: ``""`` none, ``"head"`` one head wide, ``"all"`` all heads wide.
      gated: the output is gated by a second query projection.
      sinks: a learned logit per head.
      shared_value: values come from the key projection; both are cached.
      windowed: whether only a window is kept.
    """
    q, kv = heads * head_dim, kv_heads * head_dim
    matrices = hidden * (q * (2 if gated else 1) + kv * (1 if shared_value else 2)) + q * hidden
    vectors = (q + 2 * kv) * qkv_bias + hidden * output_bias + heads * sinks
    vectors += {"": 0, "head": 2 * head_dim, "all": q + kv}[qk_norm]
    return Mixer(
        matrices=matrices, vectors=vectors, kv_values=2 * kv, pair_flop=4 * q, windowed=windowed
    )


def latent(config: Fields, *, bias: bool, index: bool) -> Mixer:
    """Multi-head latent attention: the cache holds one latent and one rotary key per token.

    An absent or null ``q_lora_rank`` means that queries are not compressed, as serving engines
    read it.

    Args:
      config: the fields.
      bias: biases of the compressing and the output projections.
      index: whether an index chooses the tokens that are attended (sparse attention).

    Source: DeepSeek-V2 (2024), section 2.1 and appendix C; DeepSeek-V3.2 (2025), section 2.1.
    """
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    rope, nope = config.size("qk_rope_head_dim"), config.size("qk_nope_head_dim")
    rank, value = config.size("kv_lora_rank"), config.size("v_head_dim")
    q_rank = config.optional_size("q_lora_rank")
    queries = heads * (nope + rope)
    if q_rank is None:
        matrices, vectors = hidden * queries, 0
    else:
        matrices, vectors = hidden * q_rank + q_rank * queries, q_rank * (1 + bias)
    matrices += hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
    vectors += bias * (rank + rope) + rank + bias * hidden
    found = Mixer(
        matrices=matrices,
        vectors=vectors,
        kv_values=rank + rope,
        pair_flop=2 * heads * (nope + rope + value),
        chosen=index,
    )
    return indexed(config, found, inside=q_rank or hidden) if index else found


def indexed(config: Fields, mixer: Mixer, *, inside: int) -> Mixer:
    """A mixer with its own index: a key per token, scored by some heads.

    Args:
      config: the fields.
      mixer: what attends the chosen tokens.
      inside: width from which the index computes its queries.
    """
    hidden, heads = config.size("hidden_size"), config.size("index_n_heads")
    width = config.size("index_head_dim")
    return dataclasses.replace(
        mixer,
        matrices=mixer.matrices + inside * heads * width + hidden * width + hidden * heads,
        vectors=mixer.vectors + 2 * width,
        index_values=width,
        index_flop=2 * heads * width,
    )


def compressed(config: Fields, ratio: int) -> Mixer:
    """DeepSeek-V4: a window of raw keys, and one compressed key for each `ratio` tokens.

    Keys serve as values. Ratio 4 compresses overlapping runs and has an index over them; larger
    ratios attend all that is compressed; 0 leaves the window alone. The window counts as state.
    """
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    width, window = config.size("head_dim"), config.size("sliding_window")
    q_rank, o_rank = config.size("q_lora_rank"), config.size("o_lora_rank")
    groups, streams = config.size("o_groups"), config.size("hc_mult")
    matrices = hidden * q_rank + q_rank * heads * width + hidden * width
    matrices += heads * width * o_rank + groups * o_rank * hidden
    found = Mixer(
        matrices=matrices,
        vectors=q_rank + width + heads + 2 * streams * hidden * (2 + streams) * streams,
        buffer_values=window * width,
        state_flop=4 * heads * width * window,
    )
    if ratio == 0:
        return found
    overlap = 2 if ratio == 4 else 1
    found = dataclasses.replace(
        found,
        matrices=found.matrices + 2 * hidden * overlap * width,
        vectors=found.vectors + ratio * overlap * width + width,
        kv_values=width / ratio,
        pair_flop=4 * heads * width / ratio,
        chosen=ratio == 4,
    )
    if ratio != 4:
        return found
    key, index_heads = config.size("index_head_dim"), config.size("index_n_heads")
    queries = q_rank * index_heads * key + hidden * index_heads
    return dataclasses.replace(
        found,
        matrices=found.matrices + queries + 2 * hidden * overlap * key,
        vectors=found.vectors + ratio * overlap * key + key,
        index_values=key / ratio,
        index_flop=2 * index_heads * key / ratio,
    )


def gated_delta(config: Fields) -> Mixer:
    """Linear attention by the gated delta rule: a matrix of state per value head.

    A token decays the state, reads it with its key, corrects it and reads it with its query: seven
    operations per number.

    Source: Yang, Kautz and Hatamizadeh, Gated Delta Networks, ICLR 2025.
    """
    hidden, kernel = config.size("hidden_size"), config.size("linear_conv_kernel_dim")
    key_heads, value_heads = (config.size(f"linear_num_{x}_heads") for x in ("key", "value"))
    key, value = (config.size(f"linear_{x}_head_dim") for x in ("key", "value"))
    channels = 2 * key_heads * key + value_heads * value
    inputs = channels + value_heads * value + 2 * value_heads
    state = value_heads * key * value
    return Mixer(
        matrices=hidden * inputs + value_heads * value * hidden,
        vectors=channels * kernel + 2 * value_heads + value,
        state_values=state,
        buffer_values=channels * (kernel - 1),
        state_flop=7 * state,
    )


def mamba2(config: Fields) -> Mixer:
    """A state-space layer with a state of ``ssm_state_size`` numbers per channel.

    Source: Dao and Gu, Transformers are SSMs, ICML 2024.
    """
    hidden, kernel = config.size("hidden_size"), config.size("conv_kernel")
    heads, width = config.size("mamba_num_heads"), config.size("mamba_head_dim")
    inner, size = heads * width, config.size("ssm_state_size")
    channels = inner + 2 * config.size("n_groups") * size
    return Mixer(
        matrices=hidden * (inner + channels + heads) + inner * hidden,
        vectors=channels * (kernel + config.flag("use_conv_bias", True)) + 3 * heads + inner,
        state_values=inner * size,
        buffer_values=channels * (kernel - 1),
        state_flop=5 * inner * size,
    )
