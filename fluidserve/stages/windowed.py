r"""What requests hold and attend where some layers keep only a window of their tokens.

With w tokens of window, a context c is attended as c in full layers and as min(c, w) in the rest.
What lies beyond, :math:`(c-w)_+`, is averaged over cells of prompt bins x output bins. A cell
counts as a point, except that its spread counts where it lies beyond the window, so that both ends
are exact: nothing beyond it, everything beyond it.

Arrays have their bins on the first axis and instances on the rest.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf
from fluidserve.specs.lengths import LengthBins
from fluidserve.timing.kv import KvShape
from fluidserve.timing.profile import FirstToken


@pytree
class Windowed:
    """Tokens within the window of an active request, as a line over its context.

    The regression of min(c, w) on c over active requests: ``level + slope * c``. It carries the
    mean and the covariance exactly; what scatters around the line is left out.

    Attributes:
      slope: (*c), between 0 (all contexts beyond the window) and 1 (all within).
      level: tokens, (*c).
    """

    slope: Leaf
    level: Leaf


@pytree
class Reservations:
    """Moments of what requests reserve in each output bin, tokens of all layers.

    Attributes:
      mean: (m, *c).
      square: (m, *c).
      active: mean over active requests, (*c).
    """

    mean: Leaf
    square: Leaf
    active: Leaf


def prompt_moments(
    bins: LengthBins, kv: KvShape | None = None
) -> tuple[Float[Array, "*c"], Float[Array, "*c"]]:
    """Mean of what a prompt holds, tokens, and mean of its square, tokens**2."""
    mean = jnp.sum(bins.in_share * bins.in_mean)
    square = jnp.sum(bins.in_share * (bins.in_mean**2 + bins.in_var))
    if kv is None:
        return mean, square
    share, prompt, spread = (_lead(x, kv) for x in (bins.in_share, bins.in_mean, bins.in_var))
    beyond = kv.beyond(prompt)
    spread = jnp.where(beyond > 0.0, spread, 0.0)
    lost = 1.0 - kv.held
    kept = mean - lost * jnp.sum(share * beyond, axis=0)
    product = jnp.sum(share * (prompt * beyond + spread), axis=0)
    beyond2 = jnp.sum(share * (beyond**2 + spread), axis=0)
    kept2 = square - 2.0 * lost * product + lost**2 * beyond2
    return kept + kv.state, kept2 + 2.0 * kv.state * kept + kv.state**2


def held_reservations(
    bins: LengthBins, kv: KvShape, steps: Float[Array, " m"], all_tokens: Reservations
) -> Reservations:
    """What requests reserve, out of the moments of all their tokens.

    Args:
      bins: the lengths.
      kv: what of its tokens a request holds.
      steps: decode steps in each output bin.
      all_tokens: moments of prompt plus output, shapes ``(m,)`` and ``()``.
    """
    share, prompt, gaps, in_spread, gap_spread = _cells(bins, kv)
    tokens = prompt + gaps + 1.0
    beyond = kv.beyond(tokens)
    outside = jnp.where(beyond > 0.0, 1.0, 0.0)
    spread = (in_spread + gap_spread) * outside
    lost = 1.0 - kv.held
    within = jnp.sum(share, axis=0)
    given = share / jnp.where(within > 0.0, within, 1.0)
    mean = _lead(all_tokens.mean, kv) - lost * jnp.sum(given * beyond, axis=0)
    square = _lead(all_tokens.square, kv)
    square = square - 2.0 * lost * jnp.sum(given * (tokens * beyond + spread), axis=0)
    square = square + lost**2 * jnp.sum(given * (beyond**2 + spread), axis=0)
    steps = _lead(steps, kv)
    weight = jnp.maximum(jnp.sum(within * steps, axis=0), 1e-6)
    never = jnp.sum(share * (steps * beyond + gap_spread * outside), axis=(0, 1)) / weight
    return Reservations(
        mean=mean + kv.state,
        square=square + 2.0 * kv.state * mean + kv.state**2,
        active=all_tokens.active - lost * never + kv.state,
    )


def windowed_contexts(
    bins: LengthBins,
    kv: KvShape,
    steps: Float[Array, " m"],
    first_token: FirstToken,
) -> Windowed:
    """The line of tokens within the window over the contexts of active requests.

    A request's contexts spread evenly over its life, from half a token beyond its prompt (half a
    token short of it when the first decode step makes the first token) to as many more as steps.

    Args:
      bins: the lengths.
      kv: the window.
      steps: decode steps in each output bin.
      first_token: where the first token leaves.
    """
    share, prompt, *_ = _cells(bins, kv)
    low = prompt + (0.5 if first_token == "prefill" else -0.5)
    high = low + _lead(steps, kv)
    weight = jnp.maximum(jnp.sum(share * (high - low), axis=(0, 1)), 1e-6)

    def mean(over):
        return jnp.sum(share * over, axis=(0, 1)) / weight

    over_low, over_high = kv.beyond(low), kv.beyond(high)
    squares = 0.5 * (over_high**2 - over_low**2)
    cubes = (over_high**3 - over_low**3) / 3.0
    middle = mean(0.5 * (high + low) * (high - low))
    variance = mean(((high - middle) ** 3 - (low - middle) ** 3) / 3.0)
    covariance = mean(cubes + (kv.window - middle) * squares)
    slope = 1.0 - jnp.clip(covariance / jnp.maximum(variance, 1e-6), 0.0, 1.0)
    return Windowed(slope=slope, level=middle - mean(squares) - slope * middle)


def _lead(x: Float[Array, "..."], kv: KvShape) -> Float[Array, "..."]:
    """Bins before the axes of the instances."""
    return jnp.reshape(x, (*jnp.shape(x), *([1] * jnp.ndim(kv.window))))


def _cells(bins: LengthBins, kv: KvShape) -> tuple[Float[Array, "q m ..."], ...]:
    """Share, prompt and gaps of each cell, and the variance of both inside it.

    Prompts are scaled, and their variance is shifted, so that cells have the mean and the square of
    the prompt that are known of each output bin.
    """
    share = bins.joint
    within = jnp.sum(share, axis=0)
    given = share / jnp.where(within > 0.0, within, 1.0)
    mean = jnp.sum(given * bins.in_mean[:, None], axis=0)
    # nobody is in an empty bin, but the cubes of its prompts have to be finite
    scale = jnp.where(mean > 0.0, bins.in_given_out / jnp.where(mean > 0.0, mean, 1.0), 1.0)
    prompt = bins.in_mean[:, None] * scale
    spread = jnp.broadcast_to(bins.in_var[:, None], prompt.shape)
    spread = spread + bins.in_square_given_out - jnp.sum(given * (prompt**2 + spread), axis=0)
    gap_spread = jnp.maximum(bins.gap_square - bins.gap_mean**2, 0.0)
    cells = (share, prompt, bins.gap_mean[None, :], spread, gap_spread[None, :])
    return tuple(_lead(x, kv) for x in cells)
