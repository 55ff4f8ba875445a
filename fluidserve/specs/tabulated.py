"""Lengths given by a table of quantiles, as they are measured from recorded traffic."""

import numpy as np

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf

PAIRS = 16384
"""Pairs that stand for a law of two tables."""

_TAIL_REFINEMENT = 2.2
_GOLDEN = 0.5 * (5.0**0.5 - 1.0)


def levels(cells: int) -> np.ndarray:
    """Probabilities ``1 - (1 - k/cells)**2.2`` of the quantiles of a table, closer at the long end.

    Args:
      cells: of the table; one less than its quantiles.

    Returns:
      increasing from 0 to 1, shape ``(cells + 1,)``.
    """
    return 1.0 - (1.0 - np.arange(cells + 1) / cells) ** _TAIL_REFINEMENT


@pytree
class Tabulated:
    """Token counts with given quantiles and a given mean, rounded to whole tokens.

    Between two quantiles a < b of the table at probabilities v < w the quantile is
    ``a + (b - a) t**p`` with ``t = (u - v) / (w - v)``: monotone, and with one exponent p for all
    cells. As the mean of ``t**p`` over a cell is ``1 / (p + 1)``, p is chosen so that the mean is
    exact before rounding.

    Attributes:
      tokens: quantiles at `levels`, from the smallest to the largest length, not decreasing,
        shape ``(cells + 1,)``.
      mean: mean length, tokens; between those of steps at the lower and at the upper quantiles.

    Example:
      >>> Tabulated(tokens=np.array([10.0, 10.0, 50.0]), mean=12.0).quantile(np.array([0.0, 1.0]))
      array([10., 50.])
    """

    tokens: Leaf
    mean: Leaf

    def quantile(self, u: np.ndarray) -> np.ndarray:
        """Token counts at given probabilities.

        Args:
          u: probabilities in [0, 1], any shape.

        Returns:
          whole tokens as floats, same shape.
        """
        tokens = np.asarray(self.tokens, float)
        at = levels(len(tokens) - 1)
        cell = np.clip(np.searchsorted(at, u, side="right") - 1, 0, len(tokens) - 2)
        part = np.clip((u - at[cell]) / (at[cell + 1] - at[cell]), 0.0, 1.0)
        low, step = tokens[cell], tokens[cell + 1] - tokens[cell]
        return np.rint(low + step * part ** self.exponent())

    def exponent(self) -> float:
        """The exponent p that gives the mean; 1 when all quantiles are equal."""
        tokens = np.asarray(self.tokens, float)
        share = np.diff(levels(len(tokens) - 1))
        low, width = np.sum(share * tokens[:-1]), np.sum(share * np.diff(tokens))
        return float(width / (float(self.mean) - low) - 1.0) if width > 0 else 1.0


def coupled(n_in: Tabulated, n_out: Tabulated, joint: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Equally likely (prompt, output) pairs with two tables and a coarse dependence between them.

    Ranks of the prompts cover (0, 1) evenly; the rank of each output is drawn from its row of
    `joint` by a sequence that steps through (0, 1) by the golden ratio, and ranked again, so that
    both tables hold exactly. Within a cell of `joint` ranks are independent.

    Args:
      n_in: prompts.
      n_out: outputs.
      joint: requests in each pair of rank cells, which are cut at `levels`; any positive multiple
        of the shares, prompts on the first axis.

    Returns:
      prompt and output tokens, shape ``(PAIRS,)`` each.
    """
    cuts = levels(len(joint))
    u = (np.arange(PAIRS) + 0.5) / PAIRS
    rows = np.clip(np.searchsorted(cuts, u, side="right") - 1, 0, len(joint) - 1)
    at = np.arange(PAIRS) * _GOLDEN % 1.0
    below = np.concatenate([np.zeros((len(joint), 1)), np.cumsum(joint, axis=1)], axis=1)
    below = below / below[:, -1:]
    v = np.empty(PAIRS)
    for row in range(len(joint)):
        here = rows == row
        v[here] = np.interp(at[here], below[row], cuts)
    ranks = np.empty(PAIRS)
    ranks[np.argsort(v, kind="stable")] = u
    return n_in.quantile(u), n_out.quantile(ranks)


def dependence(n_in: np.ndarray, n_out: np.ndarray, cells: int) -> np.ndarray:
    """Requests in each pair of rank cells, for `coupled`.

    Equal lengths are ranked at random among each other, always the same way.

    Args:
      n_in: observed prompt tokens.
      n_out: observed output tokens, same shape.
      cells: of each axis.

    Returns:
      counts, shape ``(cells, cells)``.
    """
    rng = np.random.default_rng(0)
    cuts, joint = levels(cells), np.zeros((cells, cells), int)

    def cell(lengths: np.ndarray) -> np.ndarray:
        rank = np.empty(len(lengths))
        rank[np.lexsort((rng.random(len(lengths)), lengths))] = np.arange(len(lengths)) + 0.5
        return np.clip(np.searchsorted(cuts, rank / len(lengths)) - 1, 0, cells - 1)

    np.add.at(joint, (cell(n_in), cell(n_out)), 1)
    return joint


def tabulated(lengths: np.ndarray, cells: int) -> Tabulated:
    """The table of observed lengths.

    Args:
      lengths: token counts, at least one.
      cells: of the table.
    """
    ordered = np.sort(np.asarray(lengths, float))
    rank = np.ceil(levels(cells) * len(ordered)).astype(int) - 1
    return Tabulated(tokens=ordered[np.clip(rank, 0, None)], mean=float(ordered.mean()))
