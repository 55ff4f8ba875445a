r"""Servers that take several waiting jobs at once: the wait, and the company in one's own batch.

A batch of jobs with sizes :math:`g_i` takes :math:`f + \sum g_i`: a fixed part that its jobs share
and a part of their own. A server that becomes free takes waiting jobs in order while they fit.
A job is done when its batch is, so what it loses against an idle server is

.. math:: V = W + c\,\bar g,

the wait W until its batch starts and the c companions in it. Both follow from mean values:

* servers are busy for :math:`\rho = \lambda (E g + f/b)/n` with b the mean batch; one server is met
  busy with that chance, several with that of M/G/n (or of their dispatch rule) at :math:`\rho`;
* one who waits meets the rest r of a running batch and, of m jobs waiting, geometric with mean
  :math:`m = \lambda W`, the full batches :math:`K = z^B/(1-z^B)`, :math:`z = m/(1+m)`, ahead:
  :math:`W = r + \varphi K (f + B\,Eg)/n`, with B the jobs of a full batch. For B = 1 it is the mean
  wait of M/G/n, which fixes :math:`\varphi` (1 for a single server: Pollaczek-Khinchine);
* companions came in the same interval, before and behind: :math:`2\lambda W` in the mean (less
  where arrivals are regular, more where they come in bursts), as many as fit,
  :math:`c = \sum_i z^i P(i+1 \text{ fit})` with the z of that mean. Without a limit on the
  batch it is what came while the batch before was running;
* the mean batch follows from those who wait and those who do not,
  :math:`1/b = (1-p) + p\,E[1/(1+c)]`, between Poisson and geometric companions.

Without a limit, one server is a queue with gated service and a set-up f for each gate.

Ignores: that long jobs find less company; correlation between batches.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import ndtr
from jaxtyping import Array, Float

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf
from fluidserve.queueing.mgn import RAREST, WaitFit, fast_rate

COMPANIONS = 32
"""Companions that are counted one by one; more are taken to fit if that many do."""

_SMALLEST_SCV = 1e-6
_ROUNDS = 16
_STEEP = 0.02
_LONGEST_WAIT = 1e4
_SHARPNESS = 1.5
_LEAST_SIZE = 0.2
_LEAST = 1e-4


@pytree
class Batching:
    """What a server can take at once; sizes in units of the mean size of a job.

    Attributes:
      shared: part of a batch's time that its jobs share, over the mean time of a job's own part.
      scv: squared coefficient of variation of that own part.
      fit: chance that the first so many jobs of a line fit together, from two jobs on, (i, *c).
      full: jobs of a batch when many wait.
      company: mean size of a companion over that of a job.
    """

    shared: Leaf
    scv: Leaf
    fit: Leaf
    full: Leaf
    company: Leaf


def batching(
    shared: Float[Array, "*c"],
    scv: Float[Array, "*c"],
    room: Float[Array, "..."] | float,
    size_scv: Float[Array, "..."] | float,
    *,
    most: int,
) -> Batching:
    """How many jobs fit together, their sizes gamma variables.

    Sums of sizes have normal cube roots (Wilson and Hilferty 1931). When many wait, the first job
    of a batch is one that did not fit into the one before, longer by the variability of sizes.

    Args:
      shared: as in `Batching`.
      scv: as in `Batching`.
      room: sizes that fit together, in mean sizes; a larger job goes alone. May be ``inf``.
      size_scv: squared coefficient of variation of the sizes.
      most: most jobs of a batch.
    """
    c = jnp.maximum(jnp.broadcast_to(size_scv, shared.shape), _SMALLEST_SCV)
    room = jnp.minimum(jnp.broadcast_to(room, shared.shape), 1e6) * (1.0 + 1e-3)
    count = np.arange(2.0, COMPANIONS + 2.0)
    count = jnp.reshape(jnp.array(count, shared.dtype), (-1, *([1] * shared.ndim)))
    allowed = jnp.where(count <= most, 1.0, 0.0)

    def fits(mean):
        spread = c / (9.0 * count)
        return ndtr((jnp.cbrt(room / mean) - (1.0 - spread)) / jnp.sqrt(spread)) * allowed

    many = jnp.minimum(room - 0.5 * (c + 1.0), float(most))
    full = jnp.where(room > 0.5 * COMPANIONS, many, 1.0 + jnp.sum(fits(count + c), axis=0))
    full = jnp.minimum(full, float(most))
    spread = jnp.sqrt(2.0 * c)
    slack = jnp.clip((room - 2.0) / spread, -5.0, 5.0)
    density = jnp.exp(-0.5 * slack**2) / 2.5066283
    company = 1.0 - 0.5 * spread * density / ndtr(slack)
    return Batching(
        shared=shared,
        scv=scv,
        fit=fits(count),
        full=jnp.maximum(full, 1.0),
        company=jnp.clip(company, _LEAST_SIZE, 1.0),
    )


@pytree
class BatchedWait:
    """The loss V of a job against an idle server, in units of ``mean own part / servers``.

    Attributes:
      wait: its tail.
      load: busy share of a server; below 1 when full batches can carry the rate.
      batch: mean jobs of a batch.
    """

    wait: WaitFit
    load: Leaf
    batch: Leaf


def fit_batches(
    offered: Float[Array, "*c"],
    servers: Float[Array, "*c"],
    server: Batching,
    alone: Callable[[Float[Array, "*c"], Float[Array, "*c"]], WaitFit],
    *,
    lined_up: Float[Array, "*c"],
    arrival_scv: Float[Array, "..."] | float = 1.0,
    stages: Float[Array, "..."] | float = 1.0,
) -> BatchedWait:
    """Fits the loss by batching servers.

    Args:
      offered: load of the own parts alone, ``rate * mean own part`` per server.
      servers: servers in whose unit `alone` measures.
      server: what each takes.
      alone: the wait without batches at a load and a variability of service, in units of
        ``mean service / servers``.
      lined_up: servers behind one line: all of them, or one.
      arrival_scv: squared coefficient of variation between arrivals at a line.
      stages: of a row, each of which a batch passes as a whole.
    """
    f, own = server.shared, server.scv
    index = jnp.reshape(jnp.arange(1.0, COMPANIONS + 1.0), (-1, *([1] * jnp.ndim(offered))))
    rate = offered * lined_up  # arrivals at a line per mean own part

    def again(_, at: _Point) -> _Point:
        load = offered * (1.0 + f / at.batch)
        rho = jnp.clip(load, _LEAST, 1.0 - _LEAST)
        # an arrival finds the batches of other jobs, which are size-biased
        seen = 1.0 + at.busy * at.companions
        time = f + at.batch
        scv = jnp.maximum((f * f + at.batch * (2.0 * f + seen + own)) / time**2 - 1.0, 0.0)
        single = alone(rho, scv)
        crowd = at.companions / (1.0 + at.companions)
        busy = single.busy / (1.0 + 0.226 * (lined_up - 1.0) * rho * (1.0 - rho) * crowd)

        irregular = jnp.minimum(scv, 1.0)
        first_of = (1.0 - irregular) / (lined_up + 1.0) + irregular / lined_up
        rest = jnp.where(lined_up > 1.0, first_of, 0.5 * (1.0 + scv))
        waited = single.busy > RAREST
        once = jnp.where(waited, single.mean, 1.0) / jnp.where(waited, single.busy, 1.0) / servers
        eased = jnp.clip((1.0 - rest / once) / rho, 0.0, 1.0)
        each = eased * (f + server.full) / lined_up
        ahead, growth = _full_batches(rate * at.wait, server.full)
        # after all were busy, batches are smaller than they are on average
        smaller = 1.0 - 0.1 * (1.0 - 1.0 / lined_up) * (1.0 - 1.0 / server.full)
        # Newton on the wait, since near saturation it feeds on itself
        found = time * rest * smaller + each * ahead
        wait = at.wait + (found - at.wait) / jnp.maximum(1.0 - each * rate * growth, _STEEP)
        wait = jnp.clip(wait, 0.0, _LONGEST_WAIT)

        meet = 2.0 * rate * wait
        # an interval with a job in it holds fewer others when arrivals are regular
        meet = jnp.maximum(meet - (1.0 - arrival_scv) * (1.0 - jnp.exp(-meet)), 0.0)
        z = _ratio(meet)
        companions = jnp.sum(server.fit * z**index, axis=0)
        companions = companions + server.fit[-1] * z ** (COMPANIONS + 1) * (1.0 + meet)
        c = jnp.maximum(companions, 1e-3)
        share = 0.5 * (1.0 - jnp.exp(-c) + jnp.log1p(c)) / c
        batch = jnp.clip(1.0 / (1.0 - busy + busy * share), 1.0, server.full)
        return _Point(busy=busy, wait=wait, companions=companions, batch=batch)

    zero = jnp.zeros_like(offered)
    idle = _Point(busy=zero, wait=zero, companions=zero, batch=zero + 1.0)
    at = lax.fori_loop(0, _ROUNDS, again, idle)
    # full batches let the tail of a long line decay as where jobs take 1 + f / full
    whole = 1.0 + f / server.full
    full_load = offered * whole
    single = alone(jnp.clip(full_load, _LEAST, 1.0 - _LEAST), own / whole**2)
    loss = at.wait + at.companions * server.company * stages
    decay = jnp.minimum(single.decay * servers / whole, (1.0 + 0.3 / lined_up) / loss)
    weight = at.busy * (decay * loss) ** _SHARPNESS
    load = offered * (1.0 + f / at.batch)
    load = jnp.where(full_load < 1.0, jnp.minimum(load, 1.0 - _LEAST), full_load)
    mean, decay = at.busy * loss * servers, decay / servers
    fitted = WaitFit(
        busy=at.busy,
        weight=weight,
        decay=decay,
        steep=fast_rate(at.busy, weight, decay, mean),
        mean=mean,
        rho=load,
        constant=zero,
    )
    return BatchedWait(wait=fitted, load=load, batch=at.batch)


@pytree
class _Point:
    """Mean values at one step of the fixed point; times in mean own parts."""

    busy: Leaf
    wait: Leaf
    companions: Leaf
    batch: Leaf


def _ratio(mean):
    """Ratio of a geometric law on 0, 1, 2, ... with a mean."""
    return mean / (1.0 + mean)


def _full_batches(mean, full):
    """Mean whole part of a geometric count over `full`, and its growth with the mean count."""
    z = jnp.maximum(_ratio(mean), 1e-9)
    one_more = jnp.maximum(1.0 - z**full, 1e-6)
    growth = full * z ** (full - 1.0) / (one_more * (1.0 + mean)) ** 2
    return z**full / one_more, growth
