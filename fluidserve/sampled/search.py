"""The largest rate that keeps a promise, for many candidates at once and few evaluations each."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

EVALUATIONS = 5
"""Evaluations that every candidate gets."""

_MORE = 15
_REACH = 1.6
_GUESSED = (3.0, -4.0)
_EDGE = 0.08
_TIGHT = 1.004
_NEAR = 0.02
_JUMP = 0.5
_WIDE = 4.0
_LARGEST_REACH = 8.0
_LOWEST, _HIGHEST = 1e-3, 1e3


class Roots(NamedTuple):
    """What a search finds, (candidates,).

    Attributes:
      rate: the largest rate that keeps the promise, 1/s; 0 where even a thousandth of the guess
        breaks it.
      bracketed: whether rates on both sides were evaluated, or the rate is 0; where not, even a
        thousand guesses keep the promise, and `rate` is the largest one evaluated.
      evaluations: how many each took.
    """

    rate: np.ndarray
    bracketed: np.ndarray
    evaluations: np.ndarray


class _Bracket:
    """Both ends of every candidate, `low` keeps the promise and `high` breaks it.

    Index 0 of `spare` is the margin at the low end, index 1 at the high end; `weight` is what
    regula falsi takes for it.
    """

    def __init__(self, guess: np.ndarray):
        n = guess.shape
        self.guess = guess
        self.ends = np.stack([guess / _REACH, guess * _REACH])
        self.spare = np.stack([np.full(n, x) for x in _GUESSED])
        self.weight = self.spare.copy()
        self.seen = np.zeros((2, *n), bool)
        self.reach = np.full(n, _REACH)
        self.side = np.full(n, -1)
        self.run = np.zeros(n, int)
        self.count = np.zeros(n, int)
        self.never = np.zeros(n, bool)

    def move(self, i: np.ndarray, rate: np.ndarray, spare: np.ndarray) -> None:
        """Takes in the margins of candidates i at their rates."""
        side = np.where(spare >= 0.0, 0, 1)
        other = 1 - side
        again = self.side[i] == side
        self.run[i] = np.where(again, self.run[i] + 1, 1)
        self.side[i] = side
        self.count[i] += 1
        self.weight[other, i] *= np.where(again, 0.5, 1.0)  # the Illinois rule
        reached = np.where(side == 0, rate >= self.ends[1, i], rate <= self.ends[0, i])
        beyond = reached & ~self.seen[other, i]
        self.ends[side, i], self.seen[side, i] = rate, True
        self.spare[side, i] = np.where(side == 0, np.maximum(spare, 1e-6), spare)
        self.weight[side, i] = self.spare[side, i]
        self.never[i] = (side == 1) & (rate <= self.guess[i] * _LOWEST * 1.0001)
        out = i[beyond]
        self.reach[out] = np.minimum(self.reach[out] ** 2, _LARGEST_REACH)
        farther = np.where(
            side[beyond] == 0,
            np.minimum(rate[beyond] * self.reach[out], self.guess[out] * _HIGHEST),
            np.maximum(rate[beyond] / self.reach[out], self.guess[out] * _LOWEST),
        )
        self.ends[other[beyond], out] = farther

    def probe(self, i: np.ndarray) -> np.ndarray:
        """Where to evaluate candidates i next, 1/s."""
        low, high = self.ends[:, i]
        over, under = self.weight[:, i]
        both = self.seen[:, i].all(0)
        part = np.clip(over / (over - under), _EDGE, 1.0 - _EDGE)
        part = np.where(both & (high > _WIDE * low), 0.5, part)
        inside = low * (high / low) ** part
        other = 1 - self.side[i]
        to_end = ~self.seen[other, i] & (self.run[i] > 1)
        return np.where(to_end, self.ends[other, i], inside)

    def settled(self) -> np.ndarray:
        """Which candidates need no more evaluations."""
        tight = self.ends[1] < _TIGHT * self.ends[0]
        near = np.minimum(self.spare[0], -self.spare[1]) < _NEAR
        unbounded = self.seen[0] & (self.ends[0] >= self.guess * _HIGHEST * 0.9999)
        return self.seen.all(0) & (tight | near) | self.never | unbounded

    def roots(self) -> Roots:
        """Interpolates; where the margin jumps, the low end."""
        low, high = self.ends
        over, under = self.spare
        jumps = (high < _TIGHT * low) & (over - under > _JUMP)
        part = np.where(jumps | ~self.seen.all(0), 0.0, over / (over - under))
        rate = np.where(self.never, 0.0, low * (high / low) ** part)
        return Roots(rate, self.seen.all(0) | self.never, self.count)


def search(
    margin: Callable[[np.ndarray, np.ndarray], np.ndarray],
    guess: np.ndarray,
    *,
    evaluations: int = EVALUATIONS,
) -> Roots:
    """Solves ``margin(rate) = 0`` for each candidate, with rates on a logarithmic scale.

    Around the guess a bracket of a factor of 1.6 to both sides is taken as if log-odds of 3 and -4
    had been found at its ends. Regula falsi with the Illinois rule, kept 8 % away from both ends,
    moves the ends; an end that was never evaluated is, once two evaluations in a row have come
    towards it, and the bracket grows where it does not hold. Candidates whose root lies within
    log-odds of 0.02 of an end, or between ends 0.4 % apart, are done; the others go on.

    Args:
      margin: log-odds that a promise has to spare, of some candidates (by index) at their rates;
        it must fall with the rate.
      guess: where to start, 1/s, (candidates,); positive.
      evaluations: at least so many of every candidate, and at most 15 more.
    """
    bracket, active = _Bracket(guess), np.arange(len(guess))
    rates = guess.astype(float)
    for turn in range(evaluations + _MORE):
        bracket.move(active, rates, margin(active, rates))
        if turn + 1 >= evaluations:
            active = np.flatnonzero(~bracket.settled())
        else:
            active = np.flatnonzero(~bracket.never)
        if not len(active):
            break
        rates = bracket.probe(active)
    return bracket.roots()
