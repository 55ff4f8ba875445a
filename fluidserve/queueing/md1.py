"""Closed forms of DistServe for prompts of one length: M/D/1 with tensor or pipeline parallelism.

The queue in front of a prefill instance whose prompts all take the same time, fed by a Poisson
stream. Written with plain operators: floats, NumPy and JAX arrays alike.

Source: Zhong et al., DistServe, OSDI 2024, equations 1-3; the wait is Pollaczek-Khinchine's for a
deterministic service time.
"""

from fluidserve._typing import Number


def md1_wait(rate: Number, service: Number) -> Number:
    """Mean wait before service, s.

    Args:
      rate: arrivals, 1/s.
      service: service time, s.

    Returns:
      ``R s**2 / (2 (1 - R s))``; meaningful only for ``rate * service < 1``.

    Example:
      >>> round(md1_wait(5.0, 0.1), 3)
      0.05
    """
    return rate * service**2 / (2.0 * (1.0 - rate * service))


def mean_ttft(rate: Number, service: Number) -> Number:
    """Mean TTFT on one GPU, s: equation 1, ``D + R D**2 / (2 (1 - R D))``."""
    return service + md1_wait(rate, service)


def mean_ttft_pp(rate: Number, service: Number, pp: Number) -> Number:
    """Mean TTFT with `pp` equal pipeline stages, s; equation 2 is the case of two.

    The prompt still takes `service`, but the first stage is free again after ``service / pp``.
    """
    return service + md1_wait(rate, service / pp)


def mean_ttft_tp(rate: Number, service: Number, speedup: Number) -> Number:
    """Mean TTFT with tensor parallelism, s: equation 3, where K is the speed-up."""
    return service / speedup + md1_wait(rate, service / speedup)


def capacity(service: Number, pp: Number = 1) -> Number:
    """Largest stable rate, 1/s: one prompt leaves in every ``service / pp``.

    Example:
      >>> capacity(0.25)
      4.0
    """
    return pp / service


def crossover_rate(service: float, speedup: float, *, pp: int = 2) -> float:
    """Rate at which `pp` pipeline stages overtake tensor parallelism in mean TTFT, 1/s.

    Args:
      service: time of one prompt on one GPU, s.
      speedup: what tensor parallelism over the same GPUs gains, ``1 < speedup < pp``.
      pp: pipeline stages.

    Returns:
      the rate; found by bisection between 0 and the capacity of tensor parallelism.
    """
    low, high = 0.0, capacity(service / speedup)
    for _ in range(200):
        middle = 0.5 * (low + high)
        ahead = mean_ttft_tp(middle, service, speedup) < mean_ttft_pp(middle, service, pp)
        low, high = (middle, high) if ahead else (low, middle)
    return 0.5 * (low + high)
