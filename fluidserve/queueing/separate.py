r"""Waiting time where every server has a queue of its own: GI/G/1, and join-the-shortest-queue.

**One queue with gamma service and gamma gaps** (`fit_renewal`). The wait is a geometric sum of
ladder heights H (Feller, volume II, chapter XII): with p the chance of waiting,
:math:`p\,E[e^{\theta H}] = 1` at the decay rate :math:`\theta`. Spitzer's identity gives p,

.. math:: 1 - p = \exp\Bigl(-\sum_k \frac1k P(S_1+\dots+S_k > A_1+\dots+A_k)\Bigr),

where both sums are gamma variables, whose cube roots are normal to a good approximation (Wilson and
Hilferty 1931). H is taken as gamma with variability c_H, which is known for Poisson arrivals, where
H is a residual service, and moves little from there. Then

.. math:: E H = \frac{1-p^{c_H}}{c_H\,\theta}, \qquad E W = \frac{p\,E H}{1-p}, \qquad
   P(W>y) \sim \frac{(1-p)\,p^{c_H}}{\theta\,E H}\,e^{-\theta y} .

**Join the shortest queue** (`fit_jsq`), by number, the others not seeing who moves fast. In M/G/n
the number of customers decays by z per customer, with ``log z`` the cumulant of service at u. When
queues stay level, k customers in each are n k in all, so the queue that one joins decays by
:math:`z^n` per customer, and the wait behind it, a sum of that many services, at the
:math:`\theta` with :math:`E[e^{\theta S}] = z^n`; for gamma service of variability c
:math:`\theta = (1-(1-cu)^n)/c`. For exponential service the wait is then exponential. The chance
of waiting and the mean start from M/G/n with corrections fitted to simulations of M/G/n pools with
n from 2 to 16.

Time is in units of ``mean service / servers`` as in `fluidserve.queueing.mgn`.

Ignores: heavy tails; arrivals that are not a renewal process.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array, Float

from fluidserve._numerics import ratio
from fluidserve._typing import Leaf
from fluidserve.queueing.mgn import RAREST, WaitFit, fast_rate

_SMALLEST_SCV = 0.002
_LEAST_BUSY = 1e-36
_SINGLE_TERMS = np.arange(1.0, 9.0)
_LATER_TERMS = 8.5 * np.exp(0.8 * np.arange(17))
_TERMS = np.concatenate([_SINGLE_TERMS, _LATER_TERMS])
_WEIGHTS = np.concatenate([1.0 / _SINGLE_TERMS, [0.4], np.full(16, 0.8)])
"""Spitzer's sum over k: the first terms one by one, the rest by the trapezoid rule in log k."""
_NEWTON_STEPS = 7
_NEAR_SATURATION = 0.02
_LATE_DECAY = 1.75
_SHARPNESS = 1.5


def turns_scv(arrival_scv: Leaf, servers: Leaf) -> Leaf:
    """Squared variability of the gaps at one of n servers that take arrivals in turn."""
    return arrival_scv / servers


def thinned_scv(arrival_scv: Leaf, servers: Leaf) -> Leaf:
    """The same where each arrival goes to one of n servers by chance; 1 for Poisson arrivals.

    Exact: a gap is a geometric number of gaps, of mean n.
    """
    return 1.0 + (arrival_scv - 1.0) / servers


def fit_renewal(
    rho: Float[Array, "*c"],
    scv: Float[Array, "*c"],
    arrival_scv: Float[Array, "..."] | float,
) -> WaitFit:
    """Fits the wait in GI/G/1 with gamma service and gamma gaps, in units of the mean service.

    Args:
      rho: load; must lie in (0, 1).
      scv: squared coefficient of variation of the service time.
      arrival_scv: the same of the times between arrivals.

    Returns:
      the fit; exact for exponential service up to the cube-root law, and close to M/G/1 for Poisson
      arrivals (`fit_wait` is the better one there).
    """
    c = jnp.clip(scv, _SMALLEST_SCV, 4.0)
    gaps = jnp.clip(jnp.broadcast_to(arrival_scv, rho.shape), _SMALLEST_SCV, 4.0)
    decay = _decay(rho, c, gaps)
    busy = _spitzer(rho, c, gaps)
    residual = 4.0 * (1.0 + 2.0 * c) / (3.0 * (1.0 + c)) - 1.0
    regular = jnp.clip(1.0 - gaps, 0.0, 1.0)
    ladder = residual + 0.3 * (1.0 - residual) * regular**2
    shrunk = jnp.maximum(busy, _LEAST_BUSY) ** ladder
    height = (1.0 - shrunk) / (ladder * decay)
    mean = busy * height / (1.0 - busy)
    weight = (1.0 - busy) * shrunk / (decay * height)
    return _two_exponentials(rho, busy, weight, decay, mean)


def fit_jsq(
    shared: WaitFit,
    servers: Float[Array, "*c"],
    scv: Float[Array, "*c"],
    *,
    stages: Float[Array, "..."] | float = 1.0,
) -> WaitFit:
    """Fits the wait where arrivals join the shortest of n queues, by number.

    A server may be a row of equal stages, and the number all jobs in it: the fewest jobs are then
    not the shortest wait for the first stage, which grows towards that of a server chosen blindly.

    Args:
      shared: the wait of the same servers behind one line; also the answer for one server.
      servers: servers n.
      scv: squared coefficient of variation of the service time.
      stages: of a row, in each of which a job takes its service time.
    """
    rho = shared.rho
    c = jnp.clip(scv, _SMALLEST_SCV, 4.0)
    several = servers - 1.0
    idle = 1.0 - rho
    busy = shared.busy / (1.0 + 0.226 * several * rho * idle * (1.0 - 0.166 * jnp.exp(-3.0 * c)))
    blind = (1.0 - stages ** -(0.7 + c)) * (1.0 - idle**3)
    busy = busy + jnp.maximum(rho - busy, 0.0) * blind
    stretch = 1.0 + (stages - 1.0) * (0.03 + 0.4 * c)
    uneven = 0.208 * jnp.maximum(several, 1e-6) ** 1.287 + several * c * (0.2355 + 0.507 * idle)
    once = (ratio(shared.mean, jnp.maximum(shared.busy, RAREST)) + uneven) * stretch
    level = jnp.log1p(-jnp.minimum(c * shared.decay, 1.0 - 1e-6))
    decay = -jnp.expm1(servers * level) / (c * servers) / stretch
    # a wait that is hardly more than a residual service ends sooner than any exponential
    decay = jnp.minimum(decay, _LATE_DECAY / once)
    weight = busy * (decay * once) ** _SHARPNESS
    fitted = _two_exponentials(rho, busy, weight, decay, busy * once)
    one = servers <= 1.0
    names = [f.name for f in dataclasses.fields(WaitFit)]
    return WaitFit(**{n: jnp.where(one, getattr(shared, n), getattr(fitted, n)) for n in names})


def _decay(rho, c, gaps):
    """Root u of ``-log1p(-c u) / c = log1p(gaps u / rho) / gaps``, by Newton from the right.

    Next to saturation, where the difference cancels in float32, its expansion is used alone.
    """
    slack = (1.0 - rho) / rho
    square, cube = 0.5 * (c + gaps / rho**2), (c**2 - gaps**2 / rho**3) / 3.0
    near = slack / square
    near = slack / jnp.maximum(square + cube * near, 0.5 * square)
    largest = 0.97 / c
    u = jnp.minimum(2.0 * near, largest)
    for _ in range(_NEWTON_STEPS):
        value = -jnp.log1p(-c * u) / c - jnp.log1p(gaps * u / rho) / gaps
        slope = 1.0 / (1.0 - c * u) - 1.0 / (rho + gaps * u)
        u = jnp.clip(u - value / jnp.maximum(slope, 1e-6), 0.3 * u, largest)
    return jnp.where(slack < _NEAR_SATURATION, jnp.minimum(near, largest), u)


def _spitzer(rho, c, gaps):
    """Chance of waiting in GI/G/1 by Spitzer's identity."""
    k = jnp.reshape(jnp.array(_TERMS, rho.dtype), (-1, *([1] * rho.ndim)))
    weights = jnp.reshape(jnp.array(_WEIGHTS, rho.dtype), k.shape)
    by_service, by_gaps = c / (9.0 * k), gaps / (9.0 * k)
    ratio = rho ** (-1.0 / 3.0)
    distance = (1.0 - by_service) - (1.0 - by_gaps) * ratio
    behind = ndtr(distance / jnp.sqrt(by_service + by_gaps * ratio**2))
    return -jnp.expm1(-jnp.sum(weights * behind, axis=0))


def _two_exponentials(rho, busy, weight, decay, mean) -> WaitFit:
    """The tail with a given slow exponential; the mean fixes the fast one."""
    return WaitFit(
        busy=busy,
        weight=weight,
        decay=decay,
        steep=fast_rate(busy, weight, decay, mean),
        mean=mean,
        rho=rho,
        constant=jnp.zeros_like(rho),
    )
