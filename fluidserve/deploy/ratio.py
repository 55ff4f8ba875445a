"""How many prefill and how many decode instances, from what one of each sustains by itself.

The first estimate of an xPyD deployment, before any queueing: the weaker pool sets the rate.

Ignores: that a larger pool behind one queue sustains more per instance; the KV link.
"""


def pooled_goodput(prefill_rate: float, decode_rate: float, n: int, k: int) -> float:
    """Goodput of n prefill and k decode instances, 1/s: ``min(n * prefill, k * decode)``.

    Example:
      >>> pooled_goodput(6.0, 15.0, 2, 1)
      12.0
    """
    return min(n * prefill_rate, k * decode_rate)


def best_split(prefill_rate: float, decode_rate: float, *, most: int) -> tuple[int, int]:
    """Whole numbers of instances with most goodput per instance.

    Args:
      prefill_rate: what one prefill instance sustains, 1/s.
      decode_rate: what one decode instance sustains, 1/s.
      most: instances of both kinds together, at least two.

    Returns:
      prefill and decode instances; of equally good splits the smallest.

    Raises:
      ValueError: fewer than two instances.

    Example:
      >>> best_split(6.0, 15.0, most=16)
      (5, 2)
    """
    if most < 2:
        raise ValueError(f"most={most}: a disaggregated deployment has at least two instances")
    splits = [(n, total - n) for total in range(2, most + 1) for n in range(1, total)]
    return max(splits, key=lambda s: pooled_goodput(prefill_rate, decode_rate, *s) / sum(s))
