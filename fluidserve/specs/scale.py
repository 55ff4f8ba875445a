"""How far the limits of a promise could be tightened for requests that have been served."""

import math

import numpy as np
from jaxtyping import Float, Int

from fluidserve.specs.slo import Slo, joint_limits, limits_of

Times = Float[np.ndarray, "n"]


def least_scale(
    slo: Slo,
    *,
    ttft: Times,
    tpot: Times,
    e2e: Times,
    n_out: Int[np.ndarray, "n"],
    gaps: Times | None = None,
) -> float:
    """Least factor on all limits with which served requests keep a promise of plain numbers.

    Of the times of a metric over its limit it is the one at the share asked for, and of joint
    limits that of the worst of them in each request. A request with one token has no TPOT.

    Args:
      slo: the promise.
      ttft: by request, s.
      tpot: the same.
      e2e: the same.
      n_out: output tokens of each request.
      gaps: between tokens, of all requests, s; only a limit on ITL needs them.

    Returns:
      the factor; 0 without a limit, or where nothing is counted by one.

    Example:
      >>> times = np.array([0.1, 0.2, 0.3, 0.4])
      >>> least_scale(Slo(ttft=0.2, attainment=0.75), ttft=times, tpot=times, e2e=times,
      ...             n_out=np.ones(4, int))
      1.4999999999999998
    """
    several = n_out > 1
    found = {"ttft": ttft, "tpot": np.where(several, tpot, 0.0), "e2e": e2e, "itl": gaps}
    joint = np.zeros(len(ttft))
    for limit in joint_limits(slo):
        joint = np.maximum(joint, found[limit.metric] / limit.time)
    factors = [_at_share(joint, float(slo.attainment))]
    for limit in limits_of(slo):
        if limit.share is not None:
            counted = (
                found[limit.metric][several] if limit.metric == "tpot" else found[limit.metric]
            )
            factors.append(_at_share(counted / limit.time, limit.share))
    return max(factors)


def _at_share(values: np.ndarray, share: float) -> float:
    """The least value that so large a share of the values does not exceed."""
    if not len(values):
        return 0.0
    place = min(max(math.ceil(share * len(values) - 1e-9), 1), len(values)) - 1
    return float(np.partition(values, place)[place])
