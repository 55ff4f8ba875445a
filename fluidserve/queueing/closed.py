r"""A fixed number of jobs that go around between two stations: a closed cyclic network.

Station 1 has `servers` servers and one FCFS line; station 2 sends jobs back at a rate that depends
on how many it holds. With exponential service at station 1 and, at station 2, exponential service
or processor sharing, the number q at station 1 has the product form

.. math:: \frac{p(q+1)}{p(q)} = \frac{\mu_2(N-q)}{\mu_1(q+1)}, \qquad
   \mu_1(q) = \min(q, n)/s

(Gordon and Newell 1967; Baskett, Chandy, Muntz and Palacios 1975), and a job that arrives sees the
law of N - 1 jobs (Sevcik and Mitrani 1981; Lavenberg and Reiser 1980), which is p weighted with the
rate at which jobs arrive. Where service varies less, the line is shorter and its length varies
less: as in a diffusion with the same drift, the logarithm of the ratio is multiplied by
:math:`2/(c_1 + c_2)` while jobs wait, with the variabilities of the two flows. The weight of the
waiting states is then set so that both stations pass on equally much.

The law is held on a fixed number of nodes around its mode: every whole number where they suffice,
equal steps otherwise. All sums run over logarithms, so that float32 does.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jax.scipy.special import ndtr
from jaxtyping import Array, Float

from fluidserve._numerics import ratio
from fluidserve._pytree import pytree
from fluidserve._typing import Leaf

NODES = 64
"""Nodes that hold the law."""

_BISECTIONS = 24
_REACH = 22
_DEEPEST = 16.0
_SLOWEST = 1e-30
_LEAST = 1e-18


@pytree
class ClosedLaw:
    """Where the jobs are; nodes on the first axis.

    Attributes:
      number: jobs at station 1, (g, *c).
      away: jobs at station 2, (g, *c).
      weight: share of the time, (g, *c); sums to 1.
      seen: share of the arrivals at station 1 that find so many there, (g, *c); sums to 1.
      rate: jobs that pass either station per unit of time, (*c).
    """

    number: Leaf
    away: Leaf
    weight: Leaf
    seen: Leaf
    rate: Leaf

    def mean(self, values: Float[Array, "g *c"]) -> Float[Array, "*c"]:
        """Mean over time."""
        return jnp.sum(self.weight * values, axis=0)


def closed_law(
    jobs: Float[Array, "*c"],
    servers: Float[Array, "*c"],
    service: Float[Array, "*c"],
    returning: Callable[[Float[Array, "g *c"]], Float[Array, "g *c"]],
    *,
    variability: Float[Array, "*c"] | float = 1.0,
    nodes: int = NODES,
) -> ClosedLaw:
    """The law of the number at station 1.

    Args:
      jobs: how many go around, a whole number.
      servers: servers of station 1.
      service: mean service time there.
      returning: rate at which station 2 sends jobs back, as a function of how many it holds (not
        a whole number everywhere); 0 at 0, never falling.
      variability: mean of the squared coefficients of variation of the two flows, at most 1; 1 is
        the product form.
      nodes: how many hold the law.

    Returns:
      the law; exact for up to ``nodes - 1`` jobs at ``variability = 1``.
    """

    def pull(number):
        """Log of the ratio of the two rates around a step from `number` to the next."""
        waiting = jnp.clip(number + 1.0 - servers, 0.0, 1.0)
        # a power of the ratios would move the mean by this much
        moved = waiting * 0.5 * (1.0 - variability)
        back = returning(jnp.maximum(jobs - number - moved, 0.0))
        ratio = jnp.log(jnp.maximum(back, _SLOWEST))
        ratio = ratio - jnp.log(jnp.minimum(jnp.maximum(number, 0.0) + 1.0, servers) / service)
        return ratio * (1.0 + waiting * (1.0 / variability - 1.0))

    def halve(_, ends):
        low, high = ends
        middle = 0.5 * (low + high)
        more = pull(middle[None])[0] > 0.0
        return jnp.where(more, middle, low), jnp.where(more, high, middle)

    zero = jnp.zeros_like(jobs)
    mode, _ = lax.fori_loop(0, _BISECTIONS, halve, (zero, jobs))
    low = jnp.maximum(mode - _extent(pull, mode, -1.0), 0.0)
    high = jnp.minimum(mode + _extent(pull, mode, 1.0) + 1.0, jobs)
    stride = jnp.maximum((high - low) / (nodes - 1), 1.0)
    whole = stride <= 1.0
    low = jnp.where(whole, jnp.minimum(jnp.floor(low), jnp.maximum(jobs - (nodes - 1), 0.0)), low)
    steps = jnp.reshape(jnp.arange(nodes, dtype=jobs.dtype), (-1, *([1] * jnp.ndim(jobs))))
    number = low + steps * stride
    inside = number <= jobs + 1e-3 * stride
    number = jnp.minimum(number, jobs)
    gained = pull(number + 0.5 * (stride - 1.0)) * stride
    logs = jnp.concatenate([zero[None], jnp.cumsum(gained[:-1], axis=0)])
    logs = logs + jnp.clip(number - servers, 0.0, 1.0) * _first_wait(
        returning(jnp.maximum(jobs - servers, 0.0)[None])[0] * service / servers, variability
    )
    logs = jnp.where(inside, logs, -jnp.inf)
    weight = jnp.exp(logs - jnp.max(logs, axis=0))
    away = jobs - number
    back = returning(away)
    out = jnp.minimum(number, servers) / service
    weight = _balanced(weight, number > servers - 1.0, out, back)
    rate = jnp.sum(weight * out, axis=0)
    return ClosedLaw(
        number=number,
        away=away,
        weight=weight,
        seen=ratio(weight * back, jnp.maximum(jnp.sum(weight * back, axis=0), _LEAST)),
        rate=rate,
    )


def _extent(pull, mode, side):
    """How far from the mode the logarithm of the weight has fallen by `_DEEPEST`."""
    shape = (-1, *([1] * jnp.ndim(mode)))
    distance = jnp.concatenate([jnp.zeros(1), 2.0 ** jnp.arange(-1.0, _REACH)])
    distance = jnp.reshape(distance, shape).astype(mode.dtype)
    slope = jnp.abs(pull(jnp.maximum(mode + side * distance, 0.0)))
    fallen = 0.5 * (slope[1:] + slope[:-1]) * jnp.diff(distance, axis=0)
    before = jnp.cumsum(fallen, axis=0) - fallen
    part = jnp.clip((_DEEPEST - before) / jnp.maximum(fallen, _LEAST), 0.0, 1.0)
    return jnp.sum(part * jnp.diff(distance, axis=0), axis=0)


def _first_wait(rho, variability):
    """Log of the factor on the states in which a job waits, against those that follow from one."""
    rho = jnp.clip(rho, 0.01, 0.999)
    ratio = jnp.exp(jnp.log(rho) / variability)
    waiting = jnp.clip(rho * variability * (1.0 - ratio) / (1.0 - rho), 1e-6, 0.999)
    return jnp.log(waiting * (1.0 - ratio) / (1.0 - waiting)) - jnp.log(rho) / variability


def _balanced(weight, busy, out, back):
    """Scales the states with all servers busy so that both stations pass on equally much."""
    surplus = weight * (back - out)
    gained = jnp.sum(jnp.where(busy, 0.0, surplus), axis=0)
    lost = jnp.sum(jnp.where(busy, -surplus, 0.0), axis=0)
    sound = (lost > 1e-6 * jnp.sum(weight * out, axis=0)) & (gained > 0.0)
    factor = jnp.where(sound, ratio(gained, jnp.where(sound, lost, 1.0)), 1.0)
    weight = weight * jnp.where(busy, jnp.clip(factor, 0.05, 20.0), 1.0)
    return weight / jnp.sum(weight, axis=0)


@pytree
class ClosedWait:
    """A waiting-time tail held as a table; takes the place of `fluidserve.queueing.mgn.WaitFit`.

    Attributes:
      busy: chance of waiting at all, (*c).
      mean: mean wait, (*c).
      table: P(W > y) at equally spaced y, (g, *c).
      first: the first of these, (*c).
      last: the last of these, (*c).
    """

    busy: Leaf
    mean: Leaf
    table: Leaf
    first: Leaf
    last: Leaf

    def tail(self, y: Float[Array, "..."]) -> Float[Array, "..."]:
        """P(W > y), broadcast over leading axes; 1 for negative `y`."""
        intervals = self.table.shape[0] - 1
        at = (y - self.first) / jnp.maximum(self.last - self.first, _LEAST) * intervals
        inside = jnp.clip(at, 0.0, intervals)
        index = jnp.minimum(jnp.floor(inside).astype(int), intervals - 1)
        flat = jnp.reshape(index, (-1, *jnp.shape(self.busy)))
        low = jnp.reshape(jnp.take_along_axis(self.table, flat, axis=0), index.shape)
        high = jnp.reshape(jnp.take_along_axis(self.table, flat + 1, axis=0), index.shape)
        between = low + (inside - index) * (high - low)
        below = self.busy + jnp.clip(y / jnp.maximum(self.first, _LEAST), 0.0, 1.0) * (
            self.table[0] - self.busy
        )
        held = jnp.where(at < 0.0, below, jnp.where(at > intervals, 0.0, between))
        return jnp.where(y < 0.0, 1.0, held)

    def behind(
        self, slack: Float[Array, "..."], unit: Leaf, drain: Leaf, busy: Leaf
    ) -> Float[Array, "..."]:
        """Chance that one that waits, and then waits for an exponential, takes beyond `slack`.

        The second wait counts with its mean. Arguments as for `WaitFit.behind`.
        """
        left = slack - 1.0 / drain
        both = jnp.minimum(self.tail(jnp.maximum(left, 0.0) / unit) / busy, 1.0)
        return jnp.where(left < 0.0, 1.0, both)


def closed_wait(
    law: ClosedLaw,
    servers: Float[Array, "*c"],
    scv: Float[Array, "*c"],
    unit: Float[Array, "*c"],
    held_up: Float[Array, "g *c"],
) -> ClosedWait:
    """Wait for a server of station 1, in units of ``mean service / servers``.

    A job that finds n or more jobs waits until one of the servers is free, and for one service
    after the other of those ahead of it.

    Args:
      law: where the jobs are.
      servers: servers n.
      scv: squared coefficient of variation of the service time.
      unit: servers over the mean service time.
      held_up: what else keeps a job waiting in each state, in the same units.
    """
    m = jnp.clip(scv, 0.0, 1.0)
    one = servers <= 1.0
    first_free = jnp.where(one, 0.5 * (1.0 + scv), (1.0 - m) * servers / (servers + 1.0) + m)
    stride = law.number[1] - law.number[0]
    ahead = jnp.maximum(law.number - servers, 0.0)
    busy = jnp.clip(law.number - servers + 1.0, 0.0, 1.0)
    after_line = jnp.clip(ahead, 0.0, 1.0) * law.seen
    at_once = (busy - jnp.clip(ahead, 0.0, 1.0)) * law.seen
    # an arrival finds all servers busy and nobody waiting as often as Little's law allows
    line = law.mean(ahead) / jnp.maximum(law.rate, _LEAST) * unit
    known = jnp.sum(after_line * (ahead + first_free), axis=0)
    free = jnp.sum(at_once * first_free, axis=0)
    kept = jnp.clip((line - known) / jnp.maximum(free, 1e-6), 0.0, 1.0)
    share = after_line + at_once * kept
    mean = ahead + first_free
    scale = line / jnp.maximum(jnp.sum(share * mean, axis=0), 1e-6)
    mean = mean * jnp.clip(scale, 0.5, 2.0)
    own = ahead * scv + first_free**2 * (0.33 + 0.67 * m) + (stride**2 - 1.0) / 12.0
    mean = jnp.where(share > 0.0, mean, 0.0) + held_up
    share = jnp.where(held_up > 0.0, law.seen, share)
    deviation = jnp.sqrt(jnp.maximum(own, 1e-6))
    relevant = share > 1e-6
    first = jnp.min(jnp.where(relevant, mean - 4.0 * deviation, jnp.inf), axis=0)
    last = jnp.max(jnp.where(relevant, mean + 4.0 * deviation, 0.0), axis=0)
    first = jnp.clip(first, 0.0, last)
    parts = jnp.linspace(0.0, 1.0, law.number.shape[0], dtype=mean.dtype)
    times = first + jnp.reshape(parts, (-1, *([1] * jnp.ndim(first)))) * (last - first)
    beyond = ndtr((mean - times[:, None]) / deviation)
    busy = jnp.minimum(jnp.sum(share, axis=0), 1.0)
    return ClosedWait(
        busy=busy,
        mean=jnp.sum(share * mean, axis=0),
        table=jnp.minimum(jnp.sum(share * beyond, axis=1), busy),
        first=first,
        last=last,
    )
