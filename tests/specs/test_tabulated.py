"""Tables of quantiles: exact where they are given, monotone between, with the mean of the data."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidserve.specs.lengths import length_bins
from fluidserve.specs.tabulated import (
    PAIRS,
    Tabulated,
    coupled,
    dependence,
    levels,
    tabulated,
)
from fluidserve.specs.workload import IndependentLengths, draw_lengths, stratified


def lognormal(n=20_000, sigma=1.0, seed=0):
    return np.rint(np.random.default_rng(seed).lognormal(6.0, sigma, n)) + 1


def test_levels_are_closer_at_the_long_end():
    at = levels(48)
    assert (at[0], at[-1]) == (0.0, 1.0)
    assert np.all(np.diff(at) > 0)
    assert np.all(np.diff(at, 2) < 0)
    assert 1 - at[-2] == pytest.approx(48**-2.2)


def test_quantiles_of_the_table_are_exact():
    lengths = lognormal()
    table = tabulated(lengths, 48)
    np.testing.assert_array_equal(table.quantile(levels(48)), table.tokens)
    assert table.quantile(np.array(0.0)) == lengths.min()
    assert table.quantile(np.array(1.0)) == lengths.max()


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), sigma=st.floats(0.01, 2.0), cells=st.integers(4, 64))
def test_mean_and_monotony(seed, sigma, cells):
    lengths = lognormal(2000, sigma, seed)
    table = tabulated(lengths, cells)
    values = table.quantile(stratified(50_000))
    assert np.all(np.diff(values) >= 0)
    assert table.exponent() > 0
    # rounding moves each length by half a token at most, and far less on average
    assert values.mean() == pytest.approx(lengths.mean(), rel=2e-3, abs=0.05)


def test_second_moment():
    lengths = lognormal()
    values = tabulated(lengths, 48).quantile(stratified(100_000))
    assert (values**2).mean() == pytest.approx((lengths**2).mean(), rel=0.02)


def test_equal_lengths():
    table = tabulated(np.full(100, 512), 48)
    np.testing.assert_array_equal(table.quantile(stratified(10)), np.full(10, 512.0))


def test_both_paths_take_tables():
    """Draws of the simulator and bins of the formulas have the means of the table."""
    lengths = IndependentLengths(
        n_in=tabulated(lognormal(), 48), n_out=Tabulated(tokens=np.array([1.0, 1, 9]), mean=2.0)
    )
    n_in, n_out = draw_lengths(lengths, 20_000, np.random.default_rng(0))
    bins = length_bins(lengths)
    assert n_in.mean() == pytest.approx(bins.in_share @ bins.in_mean, rel=1e-3)
    assert n_out.mean() == pytest.approx(1 + bins.out_share @ bins.gap_mean, rel=1e-2)
    assert bins.out_share[0] == pytest.approx((n_out == 1).mean(), abs=1e-3)
    assert 0.9 * lognormal().max() < bins.longest <= lognormal().max() + 9


def related(n=20_000, seed=3):
    """Outputs long for prompts of middle length only: no rank correlation, but dependence."""
    rng = np.random.default_rng(seed)
    n_in = lognormal(n, 0.8, seed)
    rank = np.argsort(np.argsort(n_in)) / n
    return n_in, np.rint(50 + 400 * (1 - np.abs(2 * rank - 1)) * rng.random(n))


def test_pairs_keep_both_tables_and_the_dependence():
    n_in, n_out = related()
    tables = tabulated(n_in, 48), tabulated(n_out, 48)
    got_in, got_out = coupled(*tables, dependence(n_in, n_out, 8))
    np.testing.assert_array_equal(np.sort(got_in), tables[0].quantile(stratified(PAIRS)))
    np.testing.assert_array_equal(np.sort(got_out), tables[1].quantile(stratified(PAIRS)))
    edges = np.quantile(n_in, [0.0, 0.25, 0.5, 0.75, 1.0])

    def middle_means(x, y):
        return [y[(x >= a) & (x <= b)].mean() for a, b in itertools.pairwise(edges)]

    np.testing.assert_allclose(middle_means(got_in, got_out), middle_means(n_in, n_out), rtol=0.05)
    # the comparison can fail: without the dependence the quarters are alike
    loose = coupled(*tables, np.ones((1, 1)))
    assert max(middle_means(*loose)) < 1.1 * min(middle_means(*loose))
    assert max(middle_means(n_in, n_out)) > 1.5 * min(middle_means(n_in, n_out))


def test_counts_of_the_dependence():
    n_in, n_out = related()
    joint = dependence(n_in, n_out, 8)
    assert joint.sum() == len(n_in)
    np.testing.assert_allclose(joint.sum(0), np.diff(levels(8)) * len(n_in), atol=1.5)
    np.testing.assert_allclose(joint.sum(1), np.diff(levels(8)) * len(n_in), atol=1.5)
    again = dependence(*coupled(tabulated(n_in, 48), tabulated(n_out, 48), joint), 8)
    np.testing.assert_allclose(again / PAIRS, joint / len(n_in), atol=2e-3)
