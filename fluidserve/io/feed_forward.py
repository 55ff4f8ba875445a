"""The feed-forward parts of a model: dense ones, and mixtures of experts.

Source of the shapes: the modelling code of each family in Hugging Face transformers.
"""

import dataclasses

from fluidserve.io.fields import Fields

GATED, PLAIN = 3, 2
"""Matrices of a feed-forward part: gate, up and down, or up and down."""


@dataclasses.dataclass(frozen=True)
class FeedForward:
    """The feed-forward parts of all layers.

    Attributes:
      dense: parameters of the matrices of dense layers, and of dense parts beside experts.
      shared: parameters of shared experts.
      routers: parameters of routers, biases and projections that no engine quantises.
      routed: parameters of all routed experts.
      width: feed-forward width that one token passes in a layer.
      experts: routed experts of a layer; 0 when dense.
      experts_per_token: routed experts that a token visits.
    """

    dense: int
    routed: int
    width: int
    shared: int = 0
    routers: int = 0
    experts: int = 0
    experts_per_token: int = 0


def gated_mlp(config: Fields, layers: int) -> FeedForward:
    """Gate, up and down projections; biases where ``mlp_bias`` says so."""
    hidden, width = config.size("hidden_size"), config.size("intermediate_size")
    bias = (2 * width + hidden) * config.flag("mlp_bias", False)
    return FeedForward(
        dense=layers * GATED * hidden * width, routers=layers * bias, routed=0, width=width
    )


def opt_mlp(config: Fields, layers: int) -> FeedForward:
    """Two projections with biases."""
    hidden, width = config.size("hidden_size"), config.size("ffn_dim")
    biases = layers * (width + hidden)
    return FeedForward(dense=layers * PLAIN * hidden * width, routers=biases, routed=0, width=width)


def mixture(
    config: Fields,
    layers: int,
    *,
    experts: str,
    width: str,
    top: str = "num_experts_per_tok",
    shared_width: int = 0,
    shared_gate: bool = False,
    dense_layers: int = 0,
    dense_width: str = "intermediate_size",
    router_bias: bool = False,
    expert_bias: bool = False,
    beside: int = 0,
    latent: int | None = None,
    matrices: int = GATED,
) -> FeedForward:
    """Experts behind a linear router, after some dense layers.

    Args:
      config: the fields.
      layers: layers with a feed-forward part.
      experts: field with the number of routed experts.
      width: field with the width of an expert.
      top: field with the experts that a token visits.
      shared_width: width of all shared experts together, which every token passes.
      shared_gate: whether a gate of one output weighs the shared expert.
      dense_layers: leading layers without experts.
      dense_width: field with their width.
      router_bias: whether the router has one number more per expert.
      expert_bias: whether experts have biases.
      beside: width of a dense part beside the experts of each layer.
      latent: width in which the experts compute; the hidden width when None.
      matrices: `GATED` or `PLAIN`.
    """
    hidden, n, chosen = config.size("hidden_size"), config.size(experts), config.size(top)
    if chosen > n:
        raise config.error(top, f"is {chosen}; {experts} is only {n}")
    sparse, inside = layers - dense_layers, latent or hidden
    one = matrices * inside * config.size(width)
    if expert_bias:
        one += (matrices - 1) * config.size(width) + inside
    routers = hidden * n + n * router_bias + hidden * shared_gate
    routers += 2 * hidden * latent if latent else 0
    dense = matrices * hidden * (sparse * beside)
    if dense_layers:
        dense += dense_layers * matrices * hidden * config.size(dense_width)
    return FeedForward(
        dense=dense,
        shared=sparse * matrices * hidden * shared_width,
        routers=sparse * routers,
        routed=sparse * n * one,
        width=chosen * config.size(width) + shared_width + beside,
        experts=n,
        experts_per_token=chosen,
    )


def mixtral_experts(config: Fields, layers: int) -> FeedForward:
    """Experts of the full feed-forward width in every layer."""
    return mixture(
        config,
        layers,
        experts="num_local_experts",
        width="intermediate_size",
        router_bias=config.flag("use_routing_bias", False),
        shared_width=config.size("shared_intermediate_size", least=0)
        if config.get("shared_intermediate_size")
        else 0,
    )


def gpt_oss_experts(config: Fields, layers: int) -> FeedForward:
    """Experts with biases in every layer."""
    return mixture(
        config,
        layers,
        experts="num_local_experts",
        width="intermediate_size",
        router_bias=True,
        expert_bias=True,
    )


def qwen_experts(config: Fields, layers: int) -> FeedForward:
    """Many narrow experts in every layer, and in newer models a shared one with a gate."""
    shared = config.get("shared_expert_intermediate_size")
    return mixture(
        config,
        layers,
        experts="num_experts",
        width="moe_intermediate_size",
        shared_width=config.size("shared_expert_intermediate_size") if shared else 0,
        shared_gate=bool(shared),
    )


def deepseek_experts(config: Fields, layers: int) -> FeedForward:
    """Many narrow experts and shared ones, after leading dense layers."""
    shared = config.size("n_shared_experts", least=0) * config.size("moe_intermediate_size")
    return mixture(
        config,
        layers,
        experts="n_routed_experts",
        width="moe_intermediate_size",
        shared_width=shared,
        dense_layers=_leading(config, "first_k_dense_replace", layers),
        router_bias=config.get("topk_method") == "noaux_tc",
    )


def glm_experts(config: Fields, layers: int) -> FeedForward:
    """As `deepseek_experts`, with a bias in every router."""
    found = deepseek_experts(config, layers)
    if config.get("topk_method") == "noaux_tc":
        return found
    sparse = layers - config.size("first_k_dense_replace", least=0)
    return dataclasses.replace(found, routers=found.routers + sparse * found.experts)


def hashed_experts(config: Fields, layers: int) -> FeedForward:
    """As `deepseek_experts`, without dense layers; some layers look their experts up."""
    return mixture(
        config,
        layers,
        experts="n_routed_experts",
        width="moe_intermediate_size",
        shared_width=config.size("n_shared_experts") * config.size("moe_intermediate_size"),
        router_bias=True,
    )


def minimax_experts(config: Fields, layers: int) -> FeedForward:
    """Leading dense layers, then experts beside a shared one."""
    return mixture(
        config,
        layers,
        experts="num_local_experts",
        width="intermediate_size",
        shared_width=config.size("n_shared_experts") * config.size("shared_intermediate_size"),
        dense_layers=_leading_zeros(config, "moe_layer_freq", layers),
        dense_width="dense_intermediate_size",
        router_bias=True,
    )


def step_experts(config: Fields, layers: int) -> FeedForward:
    """Leading dense layers, then experts beside a shared one."""
    return mixture(
        config,
        layers,
        experts="num_experts",
        width="moe_intermediate_size",
        shared_width=config.size("n_shared_experts") * config.size("share_expert_dim"),
        dense_layers=_leading(config, "first_k_dense_replace", layers),
        router_bias=config.flag("use_moe_router_bias", False),
    )


def llama4_experts(config: Fields, layers: int) -> FeedForward:
    """A shared expert as wide as the routed ones, in every layer."""
    return mixture(
        config,
        layers,
        experts="num_local_experts",
        width="intermediate_size",
        shared_width=config.size("intermediate_size"),
    )


def gemma4_feed_forward(config: Fields, layers: int) -> FeedForward:
    """A dense part in every layer, and experts beside it where ``enable_moe_block`` says so."""
    if not config.flag("enable_moe_block", False):
        return gated_mlp(config, layers)
    return mixture(
        config,
        layers,
        experts="num_experts",
        width="moe_intermediate_size",
        top="top_k_experts",
        beside=config.size("intermediate_size"),
    )


def nemotron_feed_forward(config: Fields, layers: int) -> FeedForward:
    """Up and down projections, dense or as experts; the experts may compute in a latent."""
    hidden = config.size("hidden_size")
    if not config.get("n_routed_experts"):
        width = config.size("intermediate_size")
        return FeedForward(dense=layers * PLAIN * hidden * width, routed=0, width=width)
    shared = config.size("n_shared_experts", least=0)
    return mixture(
        config,
        layers,
        experts="n_routed_experts",
        width="moe_intermediate_size",
        shared_width=shared * config.size("moe_shared_expert_intermediate_size"),
        router_bias=True,
        latent=config.optional_size("moe_latent_size"),
        matrices=PLAIN,
    )


def _leading(config: Fields, field: str, layers: int) -> int:
    """A number of leading dense layers."""
    dense = config.size(field, least=0)
    if dense > layers:
        raise config.error(field, f"is {dense}; num_hidden_layers is only {layers}")
    return dense


def _leading_zeros(config: Fields, field: str, layers: int) -> int:
    """The same, where a list says 0 of dense and 1 of sparse layers."""
    listed = config.get(field)
    if not isinstance(listed, list) or len(listed) != layers or not set(listed) <= {0, 1}:
        raise config.error(field, f"must list 0 or 1 for each of the {layers} layers")
    return listed.count(0)
