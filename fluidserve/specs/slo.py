"""The promise: limits on latencies, met by a share of the requests together or each by its own."""

import math
from typing import NamedTuple

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf

ITL_SHARE = 0.99
"""Share of the gaps that must meet a limit on ITL that says no other."""


@pytree
class Slo:
    """Service-level objective: limits on TTFT, TPOT, end-to-end latency and ITL.

    A limit without a share of its own takes part in the joint attainment: `attainment` of the
    requests must meet all of these together. A limit with a share is a constraint by itself: at
    least that share of the requests must meet it, for TPOT of the requests with two and more
    output tokens. The limit on ITL counts gaps, not requests: of all gaps between two tokens of a
    request, requests taken together, at least `itl_share` must meet it. A promise is kept when all
    constraints hold; one in which every limit has a share asks for no joint attainment.

    Attributes:
      ttft: limit on the time to first token, s; ``inf`` is none.
      tpot: limit on the mean time per output token after the first, s; ``inf`` is none.
      attainment: least share of requests that must meet the limits without a share together.
      e2e: limit on the time from arrival to the last token, s; None is none, and leaves it out of
        the compiled program.
      ttft_share: least share that must meet `ttft` by itself; None (or 0) makes it a joint limit.
      tpot_share: the same of `tpot`.
      e2e_share: the same of `e2e`.
      itl: limit on single gaps between tokens, s; None is none, and leaves it out of the compiled
        program.
      itl_share: least share of the gaps that must meet `itl`; None is `ITL_SHARE`.

    Example:
      >>> Slo(ttft=0.5, tpot=0.05, tpot_share=0.99).attainment
      0.9
    """

    ttft: Leaf = math.inf
    tpot: Leaf = math.inf
    attainment: Leaf = 0.9
    e2e: Leaf | None = None
    ttft_share: Leaf | None = None
    tpot_share: Leaf | None = None
    e2e_share: Leaf | None = None
    itl: Leaf | None = None
    itl_share: Leaf | None = None


class Limit(NamedTuple):
    """One limit of a promise, as plain numbers.

    Attributes:
      metric: ``ttft``, ``tpot``, ``e2e`` or ``itl``.
      time: the limit, s.
      share: least share that must meet it by itself; None when it is a joint limit.
    """

    metric: str
    time: float
    share: float | None


def limits_of(slo: Slo) -> list[Limit]:
    """The limits that a promise of plain numbers gives, in the order TTFT, TPOT, end to end, ITL.

    Example:
      >>> [tuple(limit) for limit in limits_of(Slo(tpot=0.05, e2e=10.0, e2e_share=0.9))]
      [('tpot', 0.05, None), ('e2e', 10.0, 0.9)]
    """
    every = (
        Limit("ttft", float(slo.ttft), _share(slo.ttft_share)),
        Limit("tpot", float(slo.tpot), _share(slo.tpot_share)),
        Limit("e2e", math.inf if slo.e2e is None else float(slo.e2e), _share(slo.e2e_share)),
        Limit(
            "itl",
            math.inf if slo.itl is None else float(slo.itl),
            _share(slo.itl_share) or ITL_SHARE,
        ),
    )
    return [limit for limit in every if limit.time < math.inf]


def joint_limits(slo: Slo) -> list[Limit]:
    """The limits that `Slo.attainment` asks for together; empty where each has its own share."""
    return [limit for limit in limits_of(slo) if limit.share is None]


def reported_limits(slo: Slo) -> list[Limit]:
    """The limits that a reported attainment is of: the joint ones, or all where none is joint.

    The limit on ITL is not among them, unless there is no other: it counts gaps, not requests.
    """
    return joint_limits(slo) or request_limits(slo) or limits_of(slo)


def request_limits(slo: Slo) -> list[Limit]:
    """The limits that a request as a whole meets or misses: all but that on ITL."""
    return [limit for limit in limits_of(slo) if limit.metric != "itl"]


def percentile_name(share: float) -> str:
    """The quantile at a share, as people name it.

    Example:
      >>> percentile_name(0.9), percentile_name(0.999)
      ('P90', 'P99.9')
    """
    return f"P{round(100.0 * share, 6):g}"


def _share(share: Leaf | None) -> float | None:
    return float(share) or None if share is not None else None
