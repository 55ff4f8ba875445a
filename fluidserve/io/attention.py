"""Which mixer each layer of a model has, and what its attention is called."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fluidserve.io.fields import Fields, shown
from fluidserve.io.mixers import Mixer, compressed, gated_delta, grouped, latent, mamba2

if TYPE_CHECKING:
    from fluidserve.io.family import Family


@dataclasses.dataclass(frozen=True)
class Attention:
    """The mixers of all layers.

    Attributes:
      kind: ``MHA``, ``GQA``, ``MQA`` or ``MLA``, with ``+SWA`` or ``+linear``.
      heads: query heads.
      kv_heads: key-value heads; 1 for MLA.
      head_dim: width of a query-key head.
      mixers: how many layers have which mixer.
      window: tokens of a window; 0 for none.
      sparse_tokens: tokens that sparse attention attends; 0 for all.
      window_kv_heads: key-value heads of layers with a window; None where they do not differ.
    """

    kind: str
    heads: int
    kv_heads: int
    head_dim: int
    mixers: tuple[tuple[int, Mixer], ...]
    window: int = 0
    sparse_tokens: int = 0
    window_kv_heads: int | None = None


@dataclasses.dataclass(frozen=True)
class Heads:
    """Heads of grouped attention, and its kind."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def kind(self) -> str:
        """``MHA``, ``GQA`` or ``MQA``."""
        if self.kv_heads == self.heads:
            return "MHA"
        return "MQA" if self.kv_heads == 1 else "GQA"


def read_heads(config: Fields, family: "Family") -> Heads:
    """Heads of grouped attention, with the defaults of the family."""
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    kv_heads = config.optional_size("num_key_value_heads")
    if kv_heads is None:
        kv_heads = heads if family.derives_kv_heads else config.size("num_key_value_heads")
    if heads % kv_heads:
        raise config.error(
            "num_key_value_heads", f"is {kv_heads}; it must divide the {heads} attention heads"
        )
    head_dim = config.optional_size("head_dim") or config.optional_size("attention_head_dim")
    if head_dim is None:
        if not family.derives_head_dim:
            raise config.error("head_dim", "is missing; this family does not derive it")
        if hidden % heads:
            raise config.error(
                "num_attention_heads",
                f"is {heads}; it must divide hidden_size {hidden} when head_dim is absent",
            )
        head_dim = hidden // heads
    return Heads(heads, kv_heads, head_dim)


def _grouped(config: Fields, family: "Family", heads: Heads, **changes: Any) -> Mixer:
    """A layer of grouped attention with the habits of a family."""
    habits: dict[str, Any] = dict(
        heads=heads.heads,
        kv_heads=heads.kv_heads,
        head_dim=heads.head_dim,
        qkv_bias=config.switch(family.qkv_bias),
        output_bias=config.switch(family.output_bias),
        qk_norm=family.qk_norm(config) if callable(family.qk_norm) else family.qk_norm,
        gated=family.gated,
        sinks=family.sinks,
    )
    return grouped(config.size("hidden_size"), **(habits | changes))


def grouped_attention(config: Fields, family: "Family", layers: int) -> Attention:
    """Heads of their own (MHA), shared by groups (GQA) or by all (MQA), some with a window."""
    heads = read_heads(config, family)
    window, inside = windowed_layers(config, family, layers)
    mixers = ((layers - inside, _grouped(config, family, heads)),)
    mixers += ((inside, _grouped(config, family, heads, windowed=True)),)
    return Attention(
        kind=heads.kind + ("+SWA" if inside else ""),
        heads=heads.heads,
        kv_heads=heads.kv_heads,
        head_dim=heads.head_dim,
        mixers=mixers,
        window=window,
    )


def gemma4_attention(config: Fields, family: "Family", layers: int) -> Attention:
    """Global layers have heads of another width, of which keys serve as values as well."""
    heads = read_heads(config, family)
    window, inside = windowed_layers(config, family, layers)
    shared = config.flag("attention_k_eq_v", False)
    other = config.optional_size("num_global_key_value_heads") if shared else None
    whole = Heads(
        heads.heads,
        other or heads.kv_heads,
        config.optional_size("global_head_dim") or heads.head_dim,
    )
    everywhere = _grouped(config, family, whole, shared_value=shared)
    return Attention(
        kind=heads.kind + ("+SWA" if inside else ""),
        heads=heads.heads,
        kv_heads=whole.kv_heads,
        head_dim=heads.head_dim,
        mixers=(
            (layers - inside, everywhere),
            (inside, _grouped(config, family, heads, windowed=True)),
        ),
        window=window,
        window_kv_heads=heads.kv_heads,
    )


def latent_attention(config: Fields, family: "Family", layers: int) -> Attention:
    """Multi-head latent attention (MLA), sparse where the family has an index.

    Layers that ``indexer_types`` calls shared take what the index of an earlier layer chose.
    """
    index = family.indexed
    bias = config.switch(family.output_bias)
    whole = latent(config, bias=bias, index=index)
    own = layers
    kinds = config.get("indexer_types") if index else None
    if kinds is not None:
        own = _listed(config, "indexer_types", layers, {"full", "shared"})["full"]
    borrowed = dataclasses.replace(latent(config, bias=bias, index=False), chosen=index)
    return Attention(
        kind="MLA",
        heads=config.size("num_attention_heads"),
        kv_heads=1,
        head_dim=config.size("qk_nope_head_dim") + config.size("qk_rope_head_dim"),
        mixers=((own, whole), (layers - own, borrowed)),
        sparse_tokens=config.size("index_topk") if index else 0,
    )


def compressed_attention(config: Fields, family: "Family", layers: int) -> Attention:
    """DeepSeek-V4: windows everywhere, and compressed keys by ``compress_ratios``."""
    ratios = config.get("compress_ratios")
    if not isinstance(ratios, list) or len(ratios) < layers:
        raise config.error("compress_ratios", f"must list a ratio for each of the {layers} layers")
    counts = Counter(ratios[:layers])
    if not set(counts) <= {0, 4, 128}:
        raise config.error("compress_ratios", f"holds {sorted(counts)}; known are 0, 4 and 128")
    return Attention(
        kind="MQA",
        heads=config.size("num_attention_heads"),
        kv_heads=1,
        head_dim=config.size("head_dim"),
        mixers=tuple((n, compressed(config, ratio)) for ratio, n in sorted(counts.items())),
        sparse_tokens=4 * config.size("index_topk"),
    )


def block_sparse_attention(config: Fields, family: "Family", layers: int) -> Attention:
    """MiniMax-M3: grouped attention to the blocks that an index scores highest."""
    heads = read_heads(config, family)
    sparse = config.get("sparse_attention_config")
    if not isinstance(sparse, dict) or not sparse.get("use_sparse_attention"):
        raise config.error("sparse_attention_config", "must be there and in use")
    inner = Fields(sparse, f"{config.where}: sparse_attention_config")
    chosen = _listed(inner, "sparse_attention_freq", layers, {0, 1})[1]
    width, index_heads = inner.size("sparse_index_dim"), inner.size("sparse_num_index_heads")
    whole = _grouped(config, family, heads)
    index = dataclasses.replace(
        whole,
        matrices=whole.matrices + config.size("hidden_size") * (index_heads + 1) * width,
        vectors=whole.vectors + 2 * width,
        chosen=True,
        index_values=width,
        index_flop=2 * index_heads * width,
    )
    return Attention(
        kind=heads.kind,
        heads=heads.heads,
        kv_heads=heads.kv_heads,
        head_dim=heads.head_dim,
        mixers=((layers - chosen, whole), (chosen, index)),
        sparse_tokens=inner.size("sparse_topk_blocks") * inner.size("sparse_block_size"),
    )


def delta_attention(config: Fields, family: "Family", layers: int) -> Attention:
    """Qwen3-Next: the gated delta rule, and full attention in every so many layers."""
    heads = read_heads(config, family)
    if config.get("layer_types") is not None:
        kinds = _listed(config, "layer_types", layers, {"linear_attention", "full_attention"})
        full = kinds["full_attention"]
    else:
        full = layers // config.size("full_attention_interval")
    return _hybrid(heads, layers - full, gated_delta(config), full, _grouped(config, family, heads))


def hybrid_attention(config: Fields, family: "Family", layers: int) -> Attention:
    """Nemotron-H: blocks of one part each, state-space or attention or feed-forward."""
    heads, blocks = read_heads(config, family), nemotron_blocks(config)
    return _hybrid(heads, blocks["M"], mamba2(config), blocks["*"], _grouped(config, family, heads))


def _hybrid(heads: Heads, linear: int, state: Mixer, full: int, whole: Mixer) -> Attention:
    return Attention(
        kind=heads.kind + "+linear",
        heads=heads.heads,
        kv_heads=heads.kv_heads,
        head_dim=heads.head_dim,
        mixers=((full, whole), (linear, state)),
    )


def nemotron_blocks(config: Fields) -> Counter:
    """How many blocks are state-space (M), attention (*), dense (-) and experts (E)."""
    letters = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
    listed = config.get("layers_block_type")
    if listed is not None:
        kinds = _listed(config, "layers_block_type", None, set(letters))
        return Counter({letters[kind]: n for kind, n in kinds.items()})
    pattern = config.get("hybrid_override_pattern")
    if not isinstance(pattern, str) or not set(pattern) <= set("M*-E"):
        raise config.error("hybrid_override_pattern", "must be a text of M, *, - and E")
    return Counter(pattern)


def windowed_layers(config: Fields, family: "Family", layers: int) -> tuple[int, int]:
    """The window, tokens, and how many layers have it; 0 and 0 for none.

    A window that holds the longest context is none.
    """
    window = family.window
    if family.window_field in config.values:
        window = config.optional_size(family.window_field)
    kinds = config.get("layer_types")
    counts = Counter()
    if kinds is not None:
        names = {"full_attention", "sliding_attention", "chunked_attention"}
        counts = _listed(config, "layer_types", layers, names)
    if family.window_switch and not config.flag("use_sliding_window", False):
        window = None
    elif window is None and counts - Counter(full_attention=layers):
        raise config.error("sliding_window", "is missing, but layer_types has layers with one")
    if window is None or window >= config.size("max_position_embeddings"):
        return 0, 0
    if kinds is not None:
        inside = layers - counts["full_attention"]
    elif family.window_switch:
        inside = max(layers - config.size("max_window_layers", least=0), 0)
    else:
        inside = sum(1 for i in range(layers) if family.windowed(config, i))
    return (window, inside) if inside else (0, 0)


LayerRule = Callable[[Fields, int], bool]
"""Whether the layer of an index has a window, where ``layer_types`` does not say so."""


def every_layer(config: Fields, index: int) -> bool:
    """Windows in all layers."""
    return True


def even_layers(config: Fields, index: int) -> bool:
    """Windows in the first, third, fifth layer."""
    return index % 2 == 0


def all_but_every_sixth(config: Fields, index: int) -> bool:
    """Windows except in every sixth layer, or as often as ``sliding_window_pattern`` says."""
    return (index + 1) % (config.optional_size("sliding_window_pattern") or 6) != 0


def rotary_layers(config: Fields, index: int) -> bool:
    """Windows where positions are rotary: ``no_rope_layers``, or all but every fourth layer."""
    listed = config.get("no_rope_layers")
    if isinstance(listed, list) and len(listed) > index:
        return bool(listed[index])
    return (index + 1) % 4 != 0


def _listed(config: Fields, field: str, layers: int | None, known: set) -> Counter:
    """How often each value stands in a list with one entry per layer."""
    values = config.get(field)
    if not isinstance(values, list) or not values or (layers and len(values) != layers):
        raise config.error(field, f"must list a kind for each of the {layers or ''} layers")
    if unknown := [v for v in values if not isinstance(v, str | int) or v not in known]:
        raise config.error(field, f"holds {shown(unknown[0])}; known are {sorted(known)}")
    return Counter(values)
