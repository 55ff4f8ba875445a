import csv
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidserve.specs.applications import find_application
from fluidserve.specs.workload import (
    IndependentLengths,
    JointLengths,
    Lognormal,
    _normal_quantile,
    draw_lengths,
    stratified,
)

LECTURE = Path(__file__).parents[1] / "lecture.csv"


def _lecture(row: str) -> dict[str, str]:
    with LECTURE.open(newline="", encoding="utf-8") as file:
        return next(line for line in csv.DictReader(file) if line["id"] == row)


def test_normal_quantile_matches_the_standard_library():
    normal = statistics.NormalDist()
    tails = 10.0 ** -np.arange(1, 300)
    u = np.concatenate([stratified(4001), tails, 1 - tails[:15], [0.075, 0.925]])
    expected = np.array([normal.inv_cdf(float(x)) for x in u])
    np.testing.assert_allclose(_normal_quantile(u), expected, rtol=1e-15, atol=0)


def test_normal_quantile_at_and_beyond_the_edges():
    np.testing.assert_array_equal(
        _normal_quantile(np.array([[0.0, 1.0], [-0.1, 1.1]])),
        [[-np.inf, np.inf], [np.nan, np.nan]],
    )
    assert _normal_quantile(np.array(0.5)) == 0


@settings(deadline=None, max_examples=50)
@given(u=st.floats(1e-300, 1 - 1e-15))
def test_normal_quantile_inverts_the_distribution_function(u):
    z = float(_normal_quantile(np.array([u]))[0])
    # cdf loses digits below 1e-16 through cancellation, hence the absolute part.
    assert statistics.NormalDist().cdf(z) == pytest.approx(u, rel=1e-12, abs=1e-15)


def test_lognormal_moments_before_clipping():
    tokens = Lognormal(mean=5000.0, cv=0.6).quantile(stratified(200_000))
    assert tokens.mean() == pytest.approx(5000, rel=1e-4)
    assert tokens.std() / tokens.mean() == pytest.approx(0.6, rel=2e-3)


def test_lognormal_is_rounded_and_clipped():
    tokens = Lognormal(mean=3.0, cv=2.0, cap=10.0).quantile(np.array([0.0, 1e-9, 0.5, 1 - 1e-9, 1]))
    # The median of a lognormal is mean / sqrt(1 + cv**2): 1.34 here.
    np.testing.assert_array_equal(tokens, [1, 1, 1, 10, 10])


def test_lognormal_without_spread_is_constant():
    tokens = Lognormal(mean=512.0, cv=0.0).quantile(stratified(7))
    np.testing.assert_array_equal(tokens, np.full(7, 512.0))


def test_kv_of_the_mean_chat_prompt():
    row = _lecture("kv-chat-mean")
    per_token = float(_lecture("kv-per-token-opt66b")["value"]) * 2**20
    assert row["unit"] == "GB"
    assert row["tolerance"] == "8%"
    chat = find_application("chatbot").lengths
    assert isinstance(chat, IndependentLengths)
    kv = chat.n_in.quantile(stratified(100_000)).mean() * per_token
    assert kv / 1e9 == pytest.approx(float(row["value"]), rel=0.08)
    # Re-centring the clipped lengths on the nominal mean would move it visibly.
    assert kv / 1e9 == pytest.approx(1.683, abs=0.001)


@pytest.mark.parametrize("seed", [0, 1])
def test_stratified_draws_have_exact_means(seed):
    lengths = find_application("chatbot").lengths
    assert isinstance(lengths, IndependentLengths)
    n_in, n_out = draw_lengths(lengths, 1000, np.random.default_rng(seed))
    np.testing.assert_array_equal(np.sort(n_in), lengths.n_in.quantile(stratified(1000)))
    np.testing.assert_array_equal(np.sort(n_out), lengths.n_out.quantile(stratified(1000)))
    # Independent: 4 sigma of a correlation of 1000 independent pairs.
    assert abs(np.corrcoef(n_in, n_out)[0, 1]) < 4 / np.sqrt(1000)


@settings(deadline=None, max_examples=40)
@given(pairs=st.integers(1, 30), n=st.integers(0, 100), seed=st.integers(0, 2**32 - 1))
def test_stratified_pairs_come_equally_often(pairs, n, seed):
    lengths = JointLengths(n_in=np.arange(pairs) + 1, n_out=2 * np.arange(pairs) + 5)
    n_in, n_out = draw_lengths(lengths, n, np.random.default_rng(seed))
    assert n_in.shape == n_out.shape == (n,)
    np.testing.assert_array_equal(n_out, 2 * (n_in - 1) + 5)
    times = np.bincount(n_in - 1, minlength=pairs)
    assert times.min() >= n // pairs
    assert times.max() <= -(-n // pairs)


def test_stratified_pairs_keep_the_mean():
    lengths = JointLengths(n_in=np.array([10, 20, 90]), n_out=np.array([1, 2, 3]))
    n_in, n_out = draw_lengths(lengths, 300, np.random.default_rng(3))
    assert n_in.mean() == 40
    assert n_out.mean() == 2


def test_independent_draws_agree_within_sampling_error():
    n = 20_000
    lengths = find_application("summarization").lengths
    n_in, _ = draw_lengths(lengths, n, np.random.default_rng(7), stratify=False)
    exact, _ = draw_lengths(lengths, n, np.random.default_rng(7))
    assert abs(n_in.mean() - exact.mean()) < 4 * exact.std() / np.sqrt(n)
    pairs = JointLengths(n_in=exact, n_out=exact)
    drawn, _ = draw_lengths(pairs, n, np.random.default_rng(8), stratify=False)
    assert abs(drawn.mean() - exact.mean()) < 4 * exact.std() / np.sqrt(n)


def test_the_same_seed_draws_the_same_requests():
    lengths = find_application("chatbot").lengths
    first = draw_lengths(lengths, 50, np.random.default_rng(1))
    again = draw_lengths(lengths, 50, np.random.default_rng(1))
    np.testing.assert_array_equal(first, again)
