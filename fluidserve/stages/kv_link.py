"""The hand-over of KV from prefill to decode over one shared link.

The link serves transfers one after the other, in one direction: an M/G/1 queue whose service is
proportional to the prompt, except that a prefill pool at high load sends its prompts out more
evenly than a Poisson stream.

Ignores: size-dependent efficiency, several links, overlap of transfer and prefill.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf

_FULL = 1.0 - 1e-3
_SHORTEST, _LONGEST = 1e-18, 1e12
"""Waits, s, below which there is none and above which all are alike: finite in every square."""


@pytree
class LinkState:
    """The link at one arrival rate.

    Attributes:
      load: busy share, (*c); may exceed 1; 0 with infinite bandwidth.
      wait: mean wait for the link, s, (*c).
      transfer: mean time on the link, s, (*c).
    """

    load: Leaf
    wait: Leaf
    transfer: Leaf

    def exponential(self) -> tuple[Float[Array, "*c"], Float[Array, "*c"]]:
        """The wait as a chance and the rate of an exponential, 1/s, as in heavy traffic."""
        busy = jnp.clip(self.load, 0.0, _FULL)
        waited = self.wait > _SHORTEST
        rate = jnp.where(waited, busy / jnp.where(waited, self.wait, 1.0), 1.0)
        return jnp.where(waited, busy, 0.0), jnp.maximum(rate, 1.0 / _LONGEST)


def link_state(
    rate: Float[Array, "*c"],
    seconds_per_token: Float[Array, "..."] | float,
    prompt_mean: Leaf,
    prompt_square: Leaf,
    *,
    prefill_load: Float[Array, "*c"],
    n_prefill: Float[Array, "*c"],
) -> LinkState:
    """The link at an arrival rate.

    The wait is Pollaczek-Khinchine's times ``1 - rho**3 / sqrt(n)``, with rho the load of n prefill
    instances: a fit to simulations of one model, whose single ratios scatter by 0.2 around it. The
    factor lies between 0 and 1, so the uncorrected wait bounds it.

    Args:
      rate: transfers, 1/s.
      seconds_per_token: bytes per token over bandwidth; 0 for an infinite link.
      prompt_mean: mean prompt, tokens.
      prompt_square: mean squared prompt, tokens**2.
      prefill_load: busy share of the prefill pool.
      n_prefill: prefill instances.
    """
    transfer = seconds_per_token * prompt_mean
    load = rate * transfer
    slack = 1.0 - jnp.clip(load, 0.0, _FULL)
    poisson = rate * seconds_per_token**2 * prompt_square / (2.0 * slack)
    wait = jnp.minimum(poisson * unevenness(prefill_load, n_prefill), _LONGEST)
    return LinkState(load=load, wait=wait, transfer=transfer)


def unevenness(prefill_load: Float[Array, "*c"], n_prefill: Float[Array, "*c"]) -> Array:
    """Wait for the link over that behind a Poisson stream, 0 to 1."""
    return 1.0 - jnp.clip(prefill_load, 0.0, 1.0) ** 3 / jnp.sqrt(n_prefill)
