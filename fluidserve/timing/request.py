"""Arithmetic of one request: from TTFT and TPOT to the time until its last token."""

from fluidserve._typing import Number


def end_to_end_latency(ttft: Number, tpot: Number, n_out: Number) -> Number:
    """Time from arrival to the last token, s: ``ttft + tpot * (n_out - 1)``.

    Args:
      ttft: time to first token, s.
      tpot: mean time per output token after the first, s.
      n_out: output tokens, at least one.

    Example:
      >>> round(end_to_end_latency(0.2, 0.04, 300), 6)
      12.16
    """
    return ttft + tpot * (n_out - 1)


def tpot_with_stalls(step: Number, stalled_step: Number, share: Number) -> Number:
    """Mean time per output token when a share of the steps is held up, s.

    A mean hides stalls: few long gaps that a reader sees move it little.

    Args:
      step: a usual decode step, s.
      stalled_step: one that a prefill in the same iteration holds up, s.
      share: of the steps that are held up, 0 to 1.

    Example:
      >>> round(tpot_with_stalls(0.04, 0.3, 0.05), 6)
      0.053
    """
    return (1.0 - share) * step + share * stalled_step
