r"""Waiting time in M/G/n and, approximately, GI/G/n queues with one shared FCFS line.

Time is measured in units of ``mean service / n``, so that a unit of work leaves per unit of time
when all servers are busy. The tail of the wait is fitted by two exponentials,

.. math:: P(W > y) = \alpha e^{-uy} + (C - \alpha) e^{-\eta y},

whose parameters come from the chance of waiting C, the exact decay rate u of a gamma service time
with the given variability, the constant :math:`\alpha` of that decay, and the mean wait, which
fixes :math:`\eta`. The idea is Tijms's (A First Course in Stochastic Models, 2003, section 9.6).

Ignores: service times with a heavy tail (a gamma law has none); arrivals that are not a renewal
process.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf

MAX_SERVERS = 64
"""Servers that the Erlang recursion runs to by default."""

RAREST = 1e-18
"""Chances of waiting below this are no wait: slopes of what they divide stay finite in float32."""

_SMALLEST_SCV = 0.01
_NEWTON_STEPS = 3
_NEAR_SATURATION = 0.03
_STEEPEST = 40.0
_FOLLOWED = 0.06


def erlang_c(
    servers: Float[Array, "*c"], rho: Float[Array, "*c"], *, max_servers: int = MAX_SERVERS
) -> Float[Array, "*c"]:
    """Chance that an arrival to M/M/n waits.

    Args:
      servers: servers n, a whole number up to `max_servers`.
      rho: load of each server, 0 to 1.
      max_servers: length of the recursion.

    Returns:
      probability; 1 at ``rho = 1``.

    Source: Erlang-B recursion ``B_k = a B_{k-1} / (k + a B_{k-1})`` with ``a = n rho`` and
    ``C = B / (1 - rho (1 - B))``; Cooper, Introduction to Queueing Theory, 1981, section 3.3.
    """
    offered = servers * rho
    start = jnp.ones_like(offered)

    def step(i, blocking):
        k = i + 1.0
        following = offered * blocking / (k + offered * blocking)
        return jnp.where(k <= servers, following, blocking)

    blocking = lax.fori_loop(0, max_servers, step, start)
    return blocking / (1.0 - rho * (1.0 - blocking))


@pytree
class WaitFit:
    """A fitted waiting-time tail, in units of ``mean service / servers``.

    Attributes:
      busy: chance of waiting at all.
      weight: weight of the slow exponential.
      decay: its rate.
      steep: rate of the fast exponential, whose weight is ``busy - weight``.
      mean: mean wait.
      rho: load of each server.
      constant: how far to follow M/D/1 over the first two services: 1 for one server and service
        of one length, falling to 0 at a variability of 0.06 or with a second server.
    """

    busy: Leaf
    weight: Leaf
    decay: Leaf
    steep: Leaf
    mean: Leaf
    rho: Leaf
    constant: Leaf

    def tail(self, y: Float[Array, "..."]) -> Float[Array, "..."]:
        """P(W > y), broadcast; 1 for negative `y`."""
        at = jnp.maximum(y, 0.0)
        slow = self.weight * jnp.exp(-self.decay * at)
        fast = (self.busy - self.weight) * jnp.exp(-self.steep * at)
        fitted = jnp.clip(slow + fast, 0.0, self.busy)

        def follow(fitted):
            gap = _md1_tail(self.rho, jnp.minimum(at, 2.0)) - fitted
            # beyond two services the fit must not rise above what M/D/1 has come down to
            gap = jnp.where(at < 2.0, gap, jnp.minimum(gap, 0.0))
            return fitted + self.constant * gap

        # rare: prompts of one length in front of a single server
        fitted = lax.cond(jnp.any(self.constant > 0.0), follow, lambda fitted: fitted, fitted)
        return jnp.where(y < 0.0, 1.0, fitted)

    def behind(
        self, slack: Float[Array, "..."], unit: Leaf, drain: Leaf, busy: Leaf
    ) -> Float[Array, "..."]:
        """Chance that one that waits, and then waits for an exponential, takes beyond `slack`.

        Each exponential of the fit convolved with that of the second wait.

        Args:
          slack: time, s, not negative.
          unit: what the fit counts in, s.
          drain: rate of the second wait, 1/s.
          busy: chance of the first one, above 0.
        """
        after = jnp.exp(-drain * slack)
        both = after
        weight = self.weight / busy
        for share, decay in ((weight, self.decay), (1.0 - weight, self.steep)):
            rate = decay / unit
            gap = drain - rate
            gap = jnp.where(jnp.abs(gap) < 1e-3 * rate, 1e-3 * rate, gap)
            both = both + share * drain / gap * (jnp.exp(-rate * slack) - after)
        return both


def fit_wait(
    rho: Float[Array, "*c"],
    servers: Float[Array, "*c"],
    scv: Float[Array, "*c"],
    arrival_scv: Float[Array, "..."] | float = 1.0,
    *,
    max_servers: int = MAX_SERVERS,
) -> WaitFit:
    """Fits the waiting time.

    Args:
      rho: load of each server; must lie in (0, 1).
      servers: servers behind the shared line.
      scv: squared coefficient of variation of the service time.
      arrival_scv: the same of the times between arrivals, taken as gamma and at least 0.01; 1 is
        Poisson.
      max_servers: length of the Erlang recursion.

    Returns:
      the fit. Exact for exponential service; exact in the chance of waiting, the mean and the decay
      for one server and a gamma service time.
    """
    c = jnp.clip(scv, _SMALLEST_SCV, 4.0)
    arrival_scv = jnp.maximum(arrival_scv, _SMALLEST_SCV)
    both = jnp.stack([jnp.broadcast_to(arrival_scv, rho.shape), jnp.ones_like(rho)])
    decay, poisson = _decay_rate(rho, c, both)
    m = jnp.minimum(c, 1.0)
    one = servers <= 1.0
    residual = jnp.where(one, 0.5 * (1.0 + c), (1.0 - m) * servers / (servers + 1.0) + m)
    exponential = erlang_c(servers, rho, max_servers=max_servers)
    busy = exponential * _regularity(rho, servers, m)
    burst = (arrival_scv + c) / (1.0 + c)
    mean = mean_wait(rho, servers, c, exponential) * burst

    # Cramer-Lundberg constant of M/G/1, times E[exp(u R)] of the time R until a server is free
    lundberg = (1.0 - rho) * (1.0 - c * poisson)
    lundberg = lundberg / jnp.maximum((1.0 + c) * poisson - (1.0 - rho), 1e-6)
    kappa = m + (1.0 - m) * servers / (servers + 2.0)
    base = jnp.clip(1.0 - kappa * poisson * residual, 0.05, 1.0)
    spread = jnp.where(one, 1.0 / rho, base ** (-1.0 / kappa))
    weight = busy * lundberg * spread

    steep = fast_rate(busy, weight, decay, mean)
    constant = jnp.where(one & (arrival_scv == 1.0), jnp.clip(1.0 - scv / _FOLLOWED, 0.0, 1.0), 0.0)
    return WaitFit(
        busy=busy, weight=weight, decay=decay, steep=steep, mean=mean, rho=rho, constant=constant
    )


def fast_rate(busy, weight, decay, mean):
    """Rate of the fast exponential that gives a tail its mean, given the chance of waiting."""
    left = mean - weight / decay
    rest = busy - weight
    small = jnp.abs(left) < 1e-6
    steep = rest / jnp.where(small, 1e-6, left)
    usable = (steep > 1.02 * decay) & (jnp.abs(rest) > 1e-4)
    return jnp.where(usable, jnp.minimum(steep, _STEEPEST), _STEEPEST)


def _md1_tail(rho, y):
    """P(W > y) in M/D/1 for ``0 <= y <= 2`` services, where two kinks defeat any exponential.

    Source: Erlang's series ``(1 - rho) sum_k (-rho (y - k))**k / k! exp(rho (y - k))``, the terms
    that are there below two services.
    """
    beyond = jnp.maximum(y - 1.0, 0.0)
    return 1.0 - (1.0 - rho) * (jnp.exp(rho * y) - rho * beyond * jnp.exp(rho * beyond))


def mean_wait(
    rho: Float[Array, "*c"],
    servers: Float[Array, "*c"],
    scv: Float[Array, "*c"],
    waits: Float[Array, "*c"],
) -> Float[Array, "*c"]:
    """Mean wait in M/G/n, in units of ``mean service / n``.

    Between M/M/n and M/D/n the harmonic interpolation in the variability c of service,
    ``(1 + c) / (2c / W_M + (1 - c) / W_D)``; above c = 1, ``(1 + c) / 2 * W_M``. Exact for one
    server (Pollaczek-Khinchine).

    Args:
      rho: load of each server, in (0, 1).
      servers: servers n.
      scv: squared coefficient of variation of the service time.
      waits: chance of waiting in M/M/n.

    Source: Kimura, Queueing Systems 17, 1994 (system interpolation); W_D by Cosmetatos, Operational
    Research Quarterly 27, 1976.
    """
    markov = waits / (1.0 - rho)
    bulge = (1.0 - rho) * (servers - 1.0) * (jnp.sqrt(4.0 + 5.0 * servers) - 2.0)
    constant = 0.5 * (1.0 + bulge / (16.0 * rho * servers))  # over markov, which may underflow
    c = jnp.minimum(scv, 1.0)
    between = (1.0 + c) / (2.0 * c + (1.0 - c) / constant)
    return markov * jnp.where(scv > 1.0, 0.5 * (1.0 + scv), between)


def _regularity(rho, servers, m):
    """Chance of waiting over that of M/M/n, for service of variability m up to 1.

    Regular service makes servers free up more evenly. A fit to simulations of M/D/n, n up to 16,
    and to 0.015; exact for one server and for exponential service.
    """
    return 1.0 - 0.2 * (1.0 - m) * rho * (1.0 - rho) * (jnp.sqrt(servers) - 1.0)


def _decay_rate(rho, c, arrival_scv):
    """Root u of ``-log1p(-c u)/c = a log1p(u/(a rho))``, a = 1/arrival_scv, by Newton.

    The left side is the log moment generating function of gamma service, the right side minus
    that of gamma arrivals. Convex, so Newton from the right of the root is monotone. Next to
    saturation the difference cancels in float32; there the cubic start is accurate enough.
    """
    a = 1.0 / arrival_scv
    slack = (1.0 - rho) / rho
    half = 0.5 * (c + arrival_scv)
    third = (1.0 + c) * (1.0 + 2.0 * c)
    root = half + jnp.sqrt(half * half + (2.0 / 3.0) * third * slack)
    u = jnp.minimum(2.0 * slack / root, 0.9 / c)
    for _ in range(_NEWTON_STEPS):
        value = -jnp.log1p(-c * u) / c - a * jnp.log1p(u / (a * rho))
        slope = 1.0 / (1.0 - c * u) - 1.0 / (rho + u / a)
        following = jnp.clip(u - value / jnp.maximum(slope, 1e-6), 0.3 * u, 0.97 / c)
        u = jnp.where(slack < _NEAR_SATURATION, u, following)
    return u
