"""What a promise asks of the shares of a deployment, for promises of traced numbers.

Whether there is an end-to-end limit or one on ITL, and whether any limit has a share of its own, is
part of the compiled program. Which limit has which share is not, so that all promises with shares
use one program. Metrics stand in the order TTFT, TPOT, end to end, and ITL where it has a limit,
which is never a joint one.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fluidserve._typing import Leaf
from fluidserve.specs.lengths import LengthBins
from fluidserve.specs.slo import ITL_SHARE, Slo


def has_shares(slo: Slo) -> bool:
    """Whether any limit has, in this program, a share of its own."""
    shares = (slo.ttft_share, slo.tpot_share, slo.e2e_share)
    return slo.itl is not None or any(share is not None for share in shares)


def scaled(slo: Slo, factor: Leaf) -> Slo:
    """The promise with all its limits multiplied by a factor."""
    times = {"ttft": slo.ttft, "tpot": slo.tpot, "e2e": slo.e2e, "itl": slo.itl}
    given = {name: time * factor for name, time in times.items() if time is not None}
    return dataclasses.replace(slo, **given)


def request_shares(slo: Slo) -> tuple[Leaf, Leaf, Leaf]:
    """The share that each limit on requests asks for by itself; 0 for a joint limit."""
    shares = (slo.ttft_share, slo.tpot_share, slo.e2e_share)
    ttft, tpot, e2e = (0.0 if share is None else share for share in shares)
    return ttft, tpot, e2e


def own_shares(slo: Slo) -> tuple[Leaf, ...]:
    """The same of all limits, that of ITL last where it has one."""
    if slo.itl is None:
        return request_shares(slo)
    return *request_shares(slo), ITL_SHARE if slo.itl_share is None else slo.itl_share


def asks_jointly(slo: Slo) -> Leaf:
    """Whether any limit is a joint one."""
    limits = (slo.ttft, slo.tpot, jnp.inf if slo.e2e is None else slo.e2e)
    first, second, third = (
        jnp.isfinite(limit) & (share <= 0.0)
        for limit, share in zip(limits, request_shares(slo), strict=True)
    )
    return first | second | third


def reported(slo: Slo) -> list[Leaf]:
    """Which limits the reported attainment is of: the joint ones, or all where none is joint.

    Those on requests: see `of_gaps_alone`.
    """
    none_joint = ~asks_jointly(slo)
    return [(share <= 0.0) | none_joint for share in request_shares(slo)]


def of_gaps_alone(slo: Slo, attainment: Float[Array, "*c"], itl: Leaf | None) -> Leaf:
    """The reported attainment: where the only limit is on ITL, the share of the gaps that meets it.

    Args:
      slo: the promise.
      attainment: share of the requests that meets the limits on requests.
      itl: share of the gaps that meets the limit on ITL; None without one.
    """
    if itl is None:
        return attainment
    limits = (slo.ttft, slo.tpot, jnp.inf if slo.e2e is None else slo.e2e)
    first, second, third = (jnp.isfinite(limit) for limit in limits)
    return jnp.where(first | second | third, attainment, itl)


def attainments(
    bins: LengthBins,
    ttft: Float[Array, "*c"],
    tpot: Float[Array, "*c"],
    e2e: Leaf | None,
    itl: Leaf | None = None,
) -> Float[Array, "l *c"]:
    """Share of the requests, for ITL of the gaps, that each limit counts and that meet it.

    TPOT counts those with two and more output tokens; 1 where there are none. 1 as well for an
    end-to-end latency without limit (None); without one on ITL there is no entry of it.
    """
    single = bins.out_share[0]
    several = jnp.maximum(1.0 - single, 1e-9)
    of_several = jnp.where(single > 1.0 - 1e-6, 1.0, (tpot - single) / several)
    shares = [ttft, of_several, jnp.ones_like(ttft) if e2e is None else e2e]
    return jnp.stack(shares if itl is None else [*shares, itl])


def own_excess(slo: Slo, attained: Float[Array, "l *c"]) -> Float[Array, "l *c"]:
    """What each attainment is above the share asked for by itself; 1 for joint limits."""
    return jnp.stack(
        [
            jnp.where(share > 0.0, value - share, 1.0)
            for share, value in zip(own_shares(slo), attained, strict=True)
        ]
    )


def excess_of(
    slo: Slo, attainment: Float[Array, "*c"], attained: Float[Array, "l *c"]
) -> Float[Array, "*c"]:
    """Smallest of what the shares of the promise are above their targets.

    Args:
      slo: the promise.
      attainment: share that meets the joint limits together.
      attained: share that meets each limit.
    """
    joint = attainment - slo.attainment
    if not has_shares(slo):
        return joint
    by_itself = jnp.min(own_excess(slo, attained), axis=0)
    return jnp.minimum(jnp.where(asks_jointly(slo), joint, 1.0), by_itself)


def most_pressing(
    slo: Slo, attained: Float[Array, "l *c"], attainment: Float[Array, "*c"]
) -> Int[Array, "*c"]:
    """The metric whose constraint is the furthest from being met.

    Of the joint limits it is the one that most requests miss; of two alike, the first.

    Args:
      slo: the promise.
      attained: share that meets each limit.
      attainment: share that meets the joint limits together.
    """
    if not has_shares(slo):
        return jnp.argmin(attained, axis=0)
    own = own_excess(slo, attained)
    joint = [share <= 0.0 for share in own_shares(slo)]
    of_joint = jnp.stack([jnp.where(j, a, 2.0) for j, a in zip(joint, attained, strict=True)])
    by_itself = jnp.min(own, axis=0) < jnp.where(
        asks_jointly(slo), attainment - slo.attainment, 1.0
    )
    return jnp.where(by_itself, jnp.argmin(own, axis=0), jnp.argmin(of_joint, axis=0))
