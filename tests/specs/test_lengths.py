"""Bins against the requests that they stand for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidserve.specs.applications import find_application, synthetic_workload
from fluidserve.specs.lengths import OUTPUT_BINS, PROMPT_BINS, length_bins
from fluidserve.specs.workload import IndependentLengths, JointLengths, Lognormal, draw_lengths

CHAT = find_application("chatbot").lengths


def correlated(n=5000, seed=0):
    rng = np.random.default_rng(seed)
    n_in = np.rint(rng.lognormal(6.0, 0.8, n)) + 1
    n_out = np.rint(n_in * rng.uniform(0.0, 0.5, n)) + 1
    return JointLengths(n_in=n_in, n_out=n_out)


LAWS = {
    "chat": CHAT,
    "constant": synthetic_workload(512, 64).lengths,
    "one token": synthetic_workload(512, 1).lengths,
    "wide": IndependentLengths(
        n_in=Lognormal(mean=300.0, cv=1.5, cap=4000.0), n_out=Lognormal(mean=3.0, cv=1.0, cap=40.0)
    ),
    "observed": correlated(),
    "one pair": JointLengths(n_in=np.array([7]), n_out=np.array([3])),
}


@pytest.mark.parametrize("law", LAWS)
def test_moments_of_the_bins_are_those_of_the_requests(law):
    """Exact for observed pairs; a million draws for the others, hence 0.5 %."""
    lengths = LAWS[law]
    bins = length_bins(lengths)
    exact = isinstance(lengths, JointLengths)
    if exact:
        n_in, n_out = np.asarray(lengths.n_in, float), np.asarray(lengths.n_out, float)
    else:
        draws = draw_lengths(lengths, 1_000_000, np.random.default_rng(1))
        n_in, n_out = (x.astype(float) for x in draws)
    rel = 1e-9 if exact else 5e-3
    gaps = n_out - 1
    prompt, output = bins.in_share, bins.out_share

    def same(got, expected):
        assert got == pytest.approx(expected, rel=rel, abs=1e-9)

    same(prompt @ bins.in_mean, n_in.mean())
    same(prompt @ (bins.in_mean**2 + bins.in_var), (n_in**2).mean())
    same(output @ bins.gap_mean, gaps.mean())
    same(output @ bins.gap_square, (gaps**2).mean())
    assert output @ bins.gap_cube == pytest.approx((gaps**3).mean(), rel=10 * rel, abs=1e-9)
    same(output @ bins.in_given_out, n_in.mean())
    same(output @ bins.in_square_given_out, (n_in**2).mean())
    assert output[0] == pytest.approx((n_out == 1).mean(), abs=1e-4)


@pytest.mark.parametrize("law", LAWS)
def test_bins_are_a_distribution(law):
    bins = length_bins(LAWS[law])
    assert bins.joint.shape == (PROMPT_BINS, OUTPUT_BINS + 1)
    assert (bins.joint >= 0).all()
    assert bins.joint.sum() == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(bins.joint.sum(0), bins.out_share, atol=1e-12)
    np.testing.assert_allclose(bins.joint.sum(1), bins.in_share, atol=1e-12)
    assert (bins.in_var >= -1e-6 * bins.in_mean**2).all()
    assert (bins.in_low <= bins.in_mean).all()
    assert (bins.in_mean <= bins.in_high).all()
    assert (np.diff(bins.in_mean[bins.in_share > 0]) >= 0).all()


def test_a_uniform_prompt_inside_its_edges_has_the_mean_of_the_bin():
    bins = length_bins(CHAT)
    np.testing.assert_allclose(0.5 * (bins.in_low + bins.in_high), bins.in_mean, rtol=1e-12)


def test_share_of_prompts_below_a_limit():
    """The reason for edges: P(L <= x) from the bins against the law, at any x."""
    bins = length_bins(CHAT)
    n_in, _ = draw_lengths(CHAT, 200_000, np.random.default_rng(2))
    width = np.maximum(bins.in_high - bins.in_low, 1e-9)
    for x in (100, 400, 755, 1200, 1800):
        share = bins.in_share @ np.clip((x - bins.in_low) / width, 0, 1)
        assert share == pytest.approx((n_in <= x).mean(), abs=0.01)


def test_correlation_is_kept():
    lengths = correlated()
    bins = length_bins(lengths)
    long_out = bins.in_given_out[-1] / (bins.in_share @ bins.in_mean)
    assert long_out > 2
    upper = bins.joint[PROMPT_BINS // 2 :, OUTPUT_BINS // 2 :].sum()
    independent = np.outer(bins.in_share, bins.out_share)
    assert upper > 1.5 * independent[PROMPT_BINS // 2 :, OUTPUT_BINS // 2 :].sum()


def test_longest_request():
    assert length_bins(CHAT).longest == 2048 + 1024
    seen = JointLengths(n_in=np.array([10, 1000, 30]), n_out=np.array([700, 5, 400]))
    assert length_bins(seen).longest == 1005


def test_single_tokens_have_a_bin_of_their_own():
    seen = JointLengths(n_in=np.array([10, 20, 30, 40]), n_out=np.array([1, 1, 5, 9]))
    bins = length_bins(seen)
    assert bins.out_share[0] == 0.5
    assert bins.gap_mean[0] == bins.gap_square[0] == 0
    assert bins.in_given_out[0] == 15
    assert (bins.gap_mean[1:][bins.out_share[1:] > 0] >= 4).all()


@settings(deadline=None, max_examples=30)
@given(mean=st.floats(1.0, 1e6), cv=st.floats(0.0, 3.0), bins=st.integers(1, 40))
def test_any_law_and_any_number_of_bins(mean, cv, bins):
    law = Lognormal(mean=mean, cv=cv)
    found = length_bins(IndependentLengths(n_in=law, n_out=law), prompt_bins=bins, output_bins=bins)
    assert found.in_share.sum() == pytest.approx(1.0)
    assert len(found.in_mean) == bins
    filled = found.in_share > 0
    assert (found.in_mean[filled] >= 1).all()
    assert found.longest >= found.in_mean.max()


@settings(deadline=None, max_examples=30)
@given(factor=st.integers(2, 50))
def test_bins_scale_with_the_lengths(factor):
    small = correlated(500)
    large = JointLengths(n_in=small.n_in * factor, n_out=small.n_out)
    one, other = length_bins(small), length_bins(large)
    np.testing.assert_allclose(other.in_mean, factor * one.in_mean)
    np.testing.assert_allclose(other.in_var, factor**2 * one.in_var, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(other.joint, one.joint)
