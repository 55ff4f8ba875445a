"""Budgets with more deployments than are scored one by one: tables pick those worth a score.

No pair of pools serves more than either pool would alone. So only pairs whose pools both reach a
rate need to be looked at for it; their goodput out of tables then tells which are scored.
"""

import bisect
import dataclasses
from typing import NamedTuple, NoReturn

import numpy as np

from fluidserve.errors import InputError
from fluidserve.problem import Problem
from fluidserve.search.grid import (
    MAX_CANDIDATES,
    Grid,
    Screened,
    Shape,
    count_deployments,
    fitting_shapes,
    grid_from,
)
from fluidserve.search.pairs import goodput_of_pairs
from fluidserve.search.plan import TIE
from fluidserve.search.score import question_of
from fluidserve.search.tables import Tables, pools_of, table_bytes, tables_of, tabulates

KEPT = 4096
"""Deployments that are scored for each reason to keep one."""

MARGIN = 0.02
"""How far tables may be off without losing a deployment, as a share of goodput."""

_BLOCK = 2**16
_NEARLY = 0.995
_ENOUGH = 1024
_MOST_SOLVED = 2**24
_MOST_BYTES = 2**30


def screened_grid(problem: Problem, budget: int, *, least: float | None) -> Grid:
    """The deployments of a budget that tables pick.

    The answer of `fluidserve.search.plan.plan` is among them while tables are less than `MARGIN`
    off.

    Args:
      problem: the question.
      budget: most GPUs over both pools.
      least: goodput from which on fewer GPUs are better, 1/s; None where more goodput is.

    Raises:
      InputError: a question that tables do not hold, or more pools than they have room for.
    """
    shapes, rejected = fitting_shapes(problem, budget)
    question, pools = question_of(problem), pools_of(shapes, budget)
    if not tabulates(question):
        _refuse(
            shapes,
            budget,
            "tables to pick them hold joint limits on TTFT and TPOT alone, in "
            "steady state, an open loop and without batched prefill",
        )
    if table_bytes(question, len(pools.shape)) > _MOST_BYTES:
        _refuse(shapes, budget, "tables to pick them would take more than a GiB")
    nothing = grid_from(problem, shapes, np.empty((4, 0), int), rejected)
    tables = tables_of(nothing, question, pools)
    count = len(pools.shape)
    choice = _Choice(
        tables=tables,
        gpus=pools.count * np.array([s.gpus for s in shapes])[pools.shape],
        prefill=np.asarray(tables.prefill.alone)[:count],
        decode=np.asarray(tables.decode.alone)[:count],
        budget=budget,
    )
    kept = None if least is None else _fewest(choice, least)
    if kept is None:
        kept = _most(choice)
    if kept is None:  # single instances of each pair of shapes tell why none serves
        single = np.searchsorted(pools.shape, np.arange(len(shapes)))
        prefill, decode = (x.ravel() for x in np.meshgrid(single, single))
        gpus = choice.gpus[prefill] + choice.gpus[decode]
        kept = _Pairs(prefill, decode, gpus, np.zeros(len(gpus)))
        kept = kept.at(np.flatnonzero(gpus <= budget))
    prefill, decode = kept.prefill, kept.decode
    index = [pools.shape[prefill], pools.shape[decode], pools.count[prefill], pools.count[decode]]
    return dataclasses.replace(
        grid_from(problem, shapes, np.array(index), rejected),
        screened=Screened(count_deployments(shapes, budget), kept.goodput),
    )


def _refuse(shapes: list[Shape], budget: int, why: str) -> NoReturn:
    """Refuses a budget.

    Raises:
      InputError: always.
    """
    raise InputError(
        f"gpus = {budget}: {count_deployments(shapes, budget):,} deployments to compare, at most "
        f"{MAX_CANDIDATES:,} are scored one by one, and {why}; plan a part of the fleet and "
        "replicate it"
    )


class _Choice(NamedTuple):
    """Pools: their tables, GPUs, goodput alone in either role, 1/s, and the budget of a pair."""

    tables: Tables
    gpus: np.ndarray
    prefill: np.ndarray
    decode: np.ndarray
    budget: int

    def reaching(self, rate: float) -> tuple[np.ndarray, np.ndarray]:
        """Prefill and decode pools that reach a rate, 1/s, or nearly, fewest GPUs first."""
        able = (
            np.flatnonzero((alone > 0.0) & (alone >= _NEARLY * rate))
            for alone in (self.prefill, self.decode)
        )
        first, second = (pools[np.argsort(self.gpus[pools], kind="stable")] for pools in able)
        return first, second

    def partners(self, rate: float, cap: int) -> np.ndarray:
        """How many decode pools each prefill pool can have that reach a rate within GPUs."""
        first, second = self.reaching(rate)
        return np.searchsorted(self.gpus[second], cap - self.gpus[first], side="right")


class _Pairs(NamedTuple):
    """Pairs of pools, with their GPUs and their goodput out of tables, 1/s."""

    prefill: np.ndarray
    decode: np.ndarray
    gpus: np.ndarray
    goodput: np.ndarray

    def at(self, rows: np.ndarray) -> "_Pairs":
        """Some of them."""
        return _Pairs(*(x[rows] for x in self))


def _fewest(choice: _Choice, least: float) -> _Pairs | None:
    """Pairs with fewest GPUs that serve a rate, 1/s, or nearly; None where none does."""
    for most in (2**18, 2**21, _MOST_SOLVED):
        pairs, complete = _pairs(choice, (1.0 - MARGIN) * least, most)
        enough = np.flatnonzero(pairs.goodput >= least)
        if complete or len(enough) >= KEPT:
            break
    if not len(enough):
        return None
    nearly = np.flatnonzero(pairs.goodput >= (1.0 - MARGIN) * least)
    return pairs.at(np.union1d(_by_gpus(pairs, enough), _by_gpus(pairs, nearly)))


def _most(choice: _Choice) -> _Pairs | None:
    """Pairs with most goodput, and those with fewest GPUs that tie; None where none serves."""
    best = _largest(choice)
    if best <= 0.0:
        return None
    for depth in (3.0 * TIE, 0.1, 0.3, 1.0):
        pairs, _ = _pairs(choice, (1.0 - depth) * best, _MOST_SOLVED)
        if (pairs.goodput >= (1.0 - depth) * best).sum() >= _ENOUGH:
            break
    ties = pairs.goodput >= (1.0 - TIE) * pairs.goodput.max()
    kept = np.argsort(-pairs.goodput, kind="stable")[:KEPT]
    for rows in (ties, ~ties & (pairs.goodput >= (1.0 - 3.0 * TIE) * best)):
        kept = np.union1d(kept, _by_gpus(pairs, np.flatnonzero(rows)))
    return pairs.at(kept)


def _largest(choice: _Choice) -> float:
    """The most that those pairs serve whose pools alone serve most, 1/s; 0 where no pair serves."""
    every = np.unique(np.concatenate([choice.prefill, choice.decode]))
    levels = every[every > 0.0][::-1]
    for wanted in (2**12, 2**16, 2**20, _MOST_SOLVED):

        def enough(level, wanted=wanted):
            return choice.partners(level, choice.budget).sum() >= wanted

        at = bisect.bisect_left(levels, True, key=enough)
        if len(levels):
            pairs, _ = _pairs(choice, levels[min(at, len(levels) - 1)], _MOST_SOLVED)
            best = float(np.max(pairs.goodput, initial=0.0))
            if best > 0.0:
                return best
        if at >= len(levels):
            break
    return 0.0


def _pairs(choice: _Choice, rate: float, most: int) -> tuple[_Pairs, bool]:
    """Pairs of pools that both reach a rate alone, 1/s; those with fewest GPUs if not all.

    Args:
      choice: the pools.
      rate: the rate.
      most: pairs to look at.

    Returns:
      the pairs, and whether they are all.
    """
    first, second = choice.reaching(rate)
    caps = range(choice.budget + 1)
    cap = bisect.bisect_right(caps, most, key=lambda cap: choice.partners(rate, cap).sum()) - 1
    partners = choice.partners(rate, cap)
    begin = np.cumsum(partners) - partners
    prefill = np.repeat(first, partners)
    decode = second[np.arange(len(prefill)) - np.repeat(begin, partners)]
    goodput = _goodputs(choice.tables, prefill, decode)
    gpus = choice.gpus[prefill] + choice.gpus[decode]
    return _Pairs(prefill, decode, gpus, goodput), cap == choice.budget


def _goodputs(tables: Tables, prefill: np.ndarray, decode: np.ndarray) -> np.ndarray:
    """Goodput of any number of pairs by one program, 1/s."""
    parts = [np.empty(0)]
    for start in range(0, len(prefill), _BLOCK):
        here = slice(start, start + _BLOCK)
        count = len(prefill[here])
        index = (np.resize(pools[here], _BLOCK) for pools in (prefill, decode))
        parts.append(goodput_of_pairs(tables, *index)[:count])
    return np.concatenate(parts)


def _by_gpus(pairs: _Pairs, rows: np.ndarray) -> np.ndarray:
    """The first `KEPT` of some rows, fewest GPUs and then most goodput first."""
    return rows[np.lexsort((-pairs.goodput[rows], pairs.gpus[rows]))][:KEPT]
