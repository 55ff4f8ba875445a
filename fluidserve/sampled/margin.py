"""What a promise has to spare on a sampled trace."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fluidserve._typing import Number
from fluidserve.deploy.promise import asks_jointly, has_shares, own_shares, reported
from fluidserve.sampled.latencies import Served
from fluidserve.sampled.trace import judged
from fluidserve.specs.slo import Slo

_ROUNDING = 1e-6
_MOST_GROWTH = 0.01


def attainments(
    slo: Slo, served: Served, n_out: Number
) -> tuple[Float[Array, "*c"], Float[Array, "3 *c"]]:
    """Share of the judged requests that meets the joint limits, and that meets each limit.

    A limit is met up to a relative rounding error of 1e-6: where lengths repeat, many requests
    have one and the same latency, and a limit may be on it. TPOT by itself counts the requests
    with two and more output tokens.

    Args:
      slo: the promise.
      served: latencies, (..., requests).
      n_out: output tokens, (requests,).
    """
    window = judged(served.ttft.shape[-1])
    limits = (slo.ttft, slo.tpot, jnp.inf if slo.e2e is None else slo.e2e)
    met = [
        x[..., window] <= jnp.expand_dims(jnp.asarray(limit) * (1.0 + _ROUNDING), -1)
        for x, limit in zip(served, limits, strict=True)
    ]
    joint = jnp.ones_like(met[0])
    for m, counts in zip(met, reported(slo), strict=True):
        joint = joint & (m | ~jnp.expand_dims(counts, -1))
    several = n_out[window] > 1
    share = functools.partial(jnp.mean, axis=-1, dtype=served.ttft.dtype)
    tpot = share(met[1] & several) / jnp.maximum(share(several), _ROUNDING)
    tpot = jnp.where(jnp.any(several), tpot, 1.0)
    return share(joint), jnp.stack([share(met[0]), tpot, share(met[2])])


def margin(
    slo: Slo, joint: Float[Array, "*c"], each: Float[Array, "3 *c"], requests: int
) -> Float[Array, "*c"]:
    """The least of what the shares of a promise are above their targets, as log-odds.

    Log-odds of a share fall about linearly in the rate, where the share itself bends. Half a
    request is added to both sides, so that shares of 0 and 1 have some.

    Args:
      slo: the promise.
      joint: share that meets the joint limits.
      each: share that meets each limit.
      requests: judged ones.
    """
    half = 0.5 / requests

    def above(share: Number, target: Number) -> jax.Array:
        odds = jnp.log((share + half) / (1.0 - share + half))
        wanted = jnp.clip(jnp.asarray(target), half, 1.0 - half)
        return odds - jnp.log((wanted + half) / (1.0 - wanted + half))

    spare = above(joint, slo.attainment)
    if not has_shares(slo):
        return spare
    spare = jnp.where(asks_jointly(slo), spare, jnp.inf)
    for share, target in zip(each, own_shares(slo), strict=True):
        own = above(share, jnp.where(jnp.asarray(target) > 0.0, target, 0.5))
        spare = jnp.minimum(spare, jnp.where(jnp.asarray(target) > 0.0, own, jnp.inf))
    return spare


def spare_growth(arrival: Float[Array, "*c n"], e2e: Float[Array, "*c n"]) -> Float[Array, "*c"]:
    """What the backlog may still grow, over what it may: below 0 in overload.

    The requests in the system are compared between the third and the last quarter of the trace;
    1 % of the arrivals may stay. It stands in where a promise would never miss a backlog.

    Args:
      arrival: times in the unit of `e2e`, sorted.
      e2e: time from arrival to the last token.
    """
    n = arrival.shape[-1]
    ended = jnp.sort(arrival + e2e, axis=-1)
    gone = jax.vmap(lambda a, b: jnp.searchsorted(a, b, side="right", method="scan_unrolled"))(
        ended, jnp.broadcast_to(arrival, ended.shape)
    )
    inside = jnp.arange(1, n + 1) - gone
    third = inside[..., n // 2 : 3 * n // 4].mean(-1)
    last = inside[..., 3 * n // 4 :].mean(-1)
    return 1.0 - (last - third) / max(n / 4, 1.0) / _MOST_GROWTH
