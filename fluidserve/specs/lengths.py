"""Prompt and output lengths as the engine sees them: bins with their conditional moments.

Atoms would misplace the share of prompts that can meet a limit at all, so each prompt bin keeps
its edges besides its mean. The bins narrow towards the long prompts, which set the tail of TTFT.
"""

import numpy as np

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf
from fluidserve.errors import InputError
from fluidserve.specs.workload import IndependentLengths, JointLengths, stratified

PROMPT_BINS = 16
OUTPUT_BINS = 12
_TAIL_REFINEMENT = 1.7
NODES = 4
"""Values of the output length that stand for an output bin where its spread matters."""
_GRID = 16384
_GOLDEN = 0.5 * (np.sqrt(5.0) - 1.0)


@pytree
class LengthBins:
    """Joint distribution of prompt tokens L and gaps g = output tokens - 1.

    The first output bin holds the requests with one output token (share 0 when there are none).
    Shapes: ``q`` prompt bins, ``m`` output bins.

    Attributes:
      in_share: probability of each prompt bin, (q,).
      in_mean: mean L in the bin, (q,).
      in_var: variance of L in the bin, (q,).
      in_low: lower edge of the bin, (q,).
      in_high: upper edge of the bin, (q,). Inside a bin L counts as uniform between its edges; they
        are the smallest and the largest L, one of them drawn in so that the mean is right.
      out_share: probability of each output bin, (m,).
      gap_mean: mean g in the bin, (m,).
      gap_square: mean g**2 in the bin, (m,).
      gap_cube: mean g**3 in the bin, (m,).
      in_given_out: mean L in the output bin, (m,).
      in_square_given_out: mean L**2 in the output bin, (m,).
      joint: probability of each pair of bins, (q, m).
      longest: longest prompt plus output that a deployment must hold, tokens.
      gap_nodes: g at the middle of k equal parts of each output bin, (m, k); only end-to-end
        latency needs them, and None takes the means instead.
    """

    in_share: Leaf
    in_mean: Leaf
    in_var: Leaf
    in_low: Leaf
    in_high: Leaf
    out_share: Leaf
    gap_mean: Leaf
    gap_square: Leaf
    gap_cube: Leaf
    in_given_out: Leaf
    in_square_given_out: Leaf
    joint: Leaf
    longest: Leaf
    gap_nodes: Leaf | None = None


def length_bins(
    lengths: IndependentLengths | JointLengths,
    *,
    prompt_bins: int = PROMPT_BINS,
    output_bins: int = OUTPUT_BINS,
) -> LengthBins:
    """Bins a length distribution.

    Independent lengths are binned on a grid of exact quantiles, observed pairs as they are. Bin
    edges lie at the probabilities ``1 - (1 - k/q)**1.7``.
    """
    if isinstance(lengths, JointLengths):
        n_in = np.asarray(lengths.n_in, float)
        n_out = np.asarray(lengths.n_out, float)
        in_bin, out_bin = _rank_bins(n_in, prompt_bins), _output_bins(n_out, output_bins)
        joint = np.zeros((prompt_bins, output_bins + 1))
        np.add.at(joint, (in_bin, out_bin), 1.0 / len(n_in))
        in_given_out = _bin_means(n_in, out_bin, output_bins + 1)
        in_square = _bin_means(n_in**2, out_bin, output_bins + 1)
        longest = float(np.max(n_in + n_out))
    else:
        u = stratified(_GRID)
        n_in, n_out = lengths.n_in.quantile(u), lengths.n_out.quantile(u)
        in_bin, out_bin = _rank_bins(n_in, prompt_bins), _output_bins(n_out, output_bins)
        in_share = np.bincount(in_bin, minlength=prompt_bins) / _GRID
        out_share = np.bincount(out_bin, minlength=output_bins + 1) / _GRID
        joint = np.outer(in_share, out_share)
        in_given_out = np.full(output_bins + 1, n_in.mean())
        in_square = np.full(output_bins + 1, (n_in**2).mean())
        longest = float(n_in[-1] + n_out[-1])
    in_mean = _bin_means(n_in, in_bin, prompt_bins)
    low = _bin_edge(np.minimum, n_in, in_bin, prompt_bins)
    high = _bin_edge(np.maximum, n_in, in_bin, prompt_bins)
    in_mean, low, high = (_carried(x, in_bin) for x in (in_mean, low, high))
    gaps = n_out - 1.0
    return LengthBins(
        in_share=joint.sum(1),
        in_mean=in_mean,
        in_var=np.maximum(
            _carried(_bin_means(n_in**2, in_bin, prompt_bins), in_bin) - in_mean**2, 0.0
        ),
        in_low=np.maximum(low, 2.0 * in_mean - high),
        in_high=np.minimum(high, 2.0 * in_mean - low),
        out_share=joint.sum(0),
        gap_mean=_bin_means(gaps, out_bin, output_bins + 1),
        gap_square=_bin_means(gaps**2, out_bin, output_bins + 1),
        gap_cube=_bin_means(gaps**3, out_bin, output_bins + 1),
        in_given_out=in_given_out,
        in_square_given_out=in_square,
        joint=joint,
        longest=longest,
        gap_nodes=_bin_nodes(gaps, out_bin, output_bins + 1),
    )


def accepted(
    lengths: IndependentLengths | JointLengths, most: int
) -> tuple[IndependentLengths | JointLengths, float]:
    """The requests of at most `most` tokens, prompt and output together.

    Args:
      lengths: what is asked for.
      most: longest request that is taken, tokens.

    Returns:
      the lengths of those, and the share of the others. Nothing changes where nothing is longer;
      independent lengths become pairs otherwise, as a long prompt then excludes long outputs.

    Raises:
      InputError: every request is longer.
    """
    n_in, n_out = _pairs(lengths)
    fits = n_in + n_out <= most
    if fits.all():
        return lengths, 0.0
    if not fits.any():
        raise InputError(f"--max-model-len {most}: every request is longer, prompt and output")
    return JointLengths(n_in=n_in[fits], n_out=n_out[fits]), 1.0 - float(np.mean(fits))


def share_longer(lengths: IndependentLengths | JointLengths, most: float) -> float:
    """Share of the requests with more than `most` tokens, prompt and output together."""
    n_in, n_out = _pairs(lengths)
    return float(np.mean(n_in + n_out > most))


def _pairs(lengths: IndependentLengths | JointLengths) -> tuple[np.ndarray, np.ndarray]:
    """Equally likely (prompt, output) pairs.

    Of independent lengths, an even covering of the unit square by ``_GRID`` points: every quantile
    of the prompt once, with outputs that step through theirs by the golden ratio (a rank-1 lattice;
    Niederreiter 1992, section 5), so that both marginals stay exact.
    """
    if isinstance(lengths, JointLengths):
        return np.asarray(lengths.n_in), np.asarray(lengths.n_out)
    order = np.argsort(np.arange(_GRID) * _GOLDEN % 1.0, kind="stable")
    rank = np.empty(_GRID, int)
    rank[order] = np.arange(_GRID)
    u = stratified(_GRID)
    return lengths.n_in.quantile(u), lengths.n_out.quantile(u[rank])


def _rank_bins(values: np.ndarray, bins: int) -> np.ndarray:
    """Bin of each value by its rank, ``0..bins-1``."""
    rank = np.empty(len(values))
    rank[np.argsort(values, kind="stable")] = stratified(len(values))
    k = bins * (1.0 - (1.0 - rank) ** (1.0 / _TAIL_REFINEMENT))
    return np.minimum(k.astype(int), bins - 1)


def _output_bins(n_out: np.ndarray, bins: int) -> np.ndarray:
    """Bin 0 for single-token requests, ``1..bins`` by rank for the rest."""
    out = np.zeros(len(n_out), int)
    several = n_out > 1
    out[several] = 1 + _rank_bins(n_out[several], bins)
    return out


def _bin_means(values: np.ndarray, index: np.ndarray, bins: int) -> np.ndarray:
    """Mean in each bin; 0 where a bin is empty (its share is 0 as well)."""
    count = np.bincount(index, minlength=bins)
    return np.bincount(index, weights=values, minlength=bins) / np.maximum(count, 1)


def _bin_nodes(values: np.ndarray, index: np.ndarray, bins: int) -> np.ndarray:
    """Quantiles at the middle of `NODES` equal parts of each bin, (bins, nodes); 0 where empty."""
    nodes = np.zeros((bins, NODES))
    order = np.lexsort((values, index))
    ends = np.cumsum(np.bincount(index, minlength=bins))
    for k, inside in enumerate(np.split(values[order], ends[:-1])):
        if len(inside):
            nodes[k] = inside[(stratified(NODES) * len(inside)).astype(int)]
    return nodes


def _carried(values: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Gives empty bins, of which few requests leave some, the value of the nearest bin below."""
    filled = np.bincount(index, minlength=len(values)) > 0
    nearest = np.maximum.accumulate(np.where(filled, np.arange(len(values)), 0))
    return values[np.where(nearest > 0, nearest, np.flatnonzero(filled)[0])]


def _bin_edge(pick: np.ufunc, values: np.ndarray, index: np.ndarray, bins: int) -> np.ndarray:
    """Smallest or largest value in each bin; 0 where a bin is empty."""
    start = np.inf if pick is np.minimum else -np.inf
    edge = np.full(bins, start)
    pick.at(edge, index, values)
    return np.where(np.isfinite(edge), edge, 0.0)
