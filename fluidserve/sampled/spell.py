r"""How long a spell of decode iterations takes whose batch stays the same.

In iteration i (from 0) of a spell of b requests the contexts add up to ``C + b i``, so that the
step time is a function of i alone. It is taken as :math:`\tau_i = t + s i + c i^2`, and k
iterations take

.. math::
   T(k) = k t + s\,\frac{k(k-1)}{2} + c\,\frac{k(k-1)(2k-1)}{6}

For `PaperTimes`, the larger of two functions affine in i, a spell ends where the other one takes
over, and this is exact with c = 0. For other time models s and c follow from three step times,
which is exact for polynomial ones; errors for smooth ones stand in ``docs/theory/sampled.md``.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from fluidserve._typing import Number
from fluidserve.timing.model import AbstractTimeModel, decode_work
from fluidserve.timing.paper import PaperTimes


class Spell(NamedTuple):
    """Step times of a spell, in the unit of `unit` times the time model's.

    Attributes:
      first: t.
      slope: s.
      bend: c.
      most: iterations for which this holds, at least 1.
    """

    first: Number
    slope: Number
    bend: Number
    most: Number


def spell_of(
    times: AbstractTimeModel,
    unit: Number,
    first: Number,
    *,
    batch: Number,
    context: Number,
    most: Number,
) -> Spell:
    """Step times of up to `most` iterations.

    Args:
      times: the time model of one candidate.
      unit: what its seconds are multiplied by.
      first: time of the first iteration, multiplied already.
      batch: requests.
      context: sum of their contexts in the first iteration, tokens.
      most: iterations wanted, at least 1.
    """
    if isinstance(times, PaperTimes):
        compute, memory = times.sides(decode_work(batch, context))
        rising = batch * jnp.stack([times.per_pair, times.per_kv_token])
        ahead = compute - memory
        closing = jnp.where(ahead >= 0.0, rising[1] - rising[0], rising[0] - rising[1])
        closes = closing > 0.0
        until = jnp.abs(ahead) / jnp.where(closes, closing, 1.0)
        last = jnp.where(closes, jnp.floor(until), jnp.inf) + 1.0
        slope = unit * jnp.where(ahead >= 0.0, rising[0], rising[1])
        most = jnp.minimum(last, most).astype(most.dtype)
        return Spell(first=first, slope=slope, bend=0.0 * slope, most=most)
    step = jnp.maximum(most // 2, 1).astype(jnp.result_type(first))
    middle, end = (
        unit * times.stage_time(decode_work(batch, context + batch * i)) for i in (step, 2.0 * step)
    )
    bend = (end - 2.0 * middle + first) / (2.0 * step * step)
    return Spell(first=first, slope=(middle - first) / step - bend * step, bend=bend, most=most)


def duration(spell: Spell, k: Number) -> Number:
    """Time of the first k iterations."""
    pairs = 0.5 * k * (k - 1.0)
    return k * spell.first + pairs * (spell.slope + spell.bend * (2.0 * k - 1.0) / 3.0)


def iterations_until(spell: Spell, time: Number) -> Number:
    """How many iterations end at or after `time` at the earliest, between 1 and `most`.

    The root of ``T(k) = time`` without the bend, then one step of Newton's method with it.

    Args:
      spell: the step times.
      time: from the start of the spell; may be ``inf``.
    """
    most = spell.most.astype(jnp.result_type(spell.first))
    time = jnp.clip(time, 0.0, duration(spell, most))
    half = spell.first - 0.5 * spell.slope
    root = jnp.sqrt(jnp.maximum(half * half + 2.0 * spell.slope * time, 0.0))
    x = jnp.clip(2.0 * time / jnp.maximum(half + root, _tiny(half)), 1.0, most)
    steep = spell.first + spell.slope * (x - 0.5) + spell.bend * (x * (x - 1.0) + 1.0 / 6.0)
    x = x - (duration(spell, x) - time) / jnp.maximum(steep, _tiny(half))
    return jnp.clip(jnp.ceil(x), 1.0, most).astype(spell.most.dtype)


def _tiny(like: Number) -> Number:
    return lax.stop_gradient(jnp.finfo(jnp.result_type(like)).tiny)
