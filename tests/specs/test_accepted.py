"""Requests that are too long: left out and counted, never clipped."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidserve.errors import InputError
from fluidserve.specs.applications import find_application, synthetic_workload
from fluidserve.specs.lengths import accepted, length_bins, share_longer
from fluidserve.specs.workload import JointLengths, Peak, busiest, draw_lengths, thinned

CHAT = find_application("chatbot").lengths


def test_observed_pairs():
    pairs = JointLengths(n_in=np.array([10, 50, 95, 90]), n_out=np.array([10, 50, 6, 9]))
    kept, refused = accepted(pairs, 100)
    assert isinstance(kept, JointLengths)
    assert refused == 0.25
    np.testing.assert_array_equal(kept.n_in, [10, 50, 90])
    np.testing.assert_array_equal(kept.n_out, [10, 50, 9])
    assert share_longer(pairs, 100) == 0.25


def test_nothing_changes_where_all_fit():
    assert accepted(CHAT, 2048 + 1024) == (CHAT, 0.0)


@pytest.mark.parametrize("most", [300, 1000, 2000])
def test_independent_lengths_against_draws(most):
    """Share and means of what is left, against a million independent draws."""
    n_in, n_out = draw_lengths(CHAT, 1_000_000, np.random.default_rng(0))
    fits = n_in + n_out <= most
    kept, refused = accepted(CHAT, most)
    assert isinstance(kept, JointLengths)
    assert refused == pytest.approx(1 - fits.mean(), abs=2e-3)
    assert np.max(kept.n_in + kept.n_out) <= most
    assert kept.n_in.mean() == pytest.approx(n_in[fits].mean(), rel=5e-3)
    assert kept.n_out.mean() == pytest.approx(n_out[fits].mean(), rel=5e-3)
    assert length_bins(kept).longest <= most


@settings(deadline=None, max_examples=25)
@given(most=st.integers(4, 4000))
def test_a_higher_limit_refuses_less(most):
    lengths = synthetic_workload(300, 100, 1.0, 1.0).lengths
    assert share_longer(lengths, most) >= share_longer(lengths, most + 1)


def test_a_limit_below_every_request_is_refused():
    with pytest.raises(InputError, match="every request is longer"):
        accepted(synthetic_workload(512, 64).lengths, 575)
    assert accepted(synthetic_workload(512, 64).lengths, 576)[1] == 0.0


def test_thinned_counts_keep_their_law():
    """Variance over mean of counts, with a share p of the requests left in at random."""
    rng = np.random.default_rng(5)
    counts = rng.negative_binomial(5, 5 / (5 + 300), 200_000)  # mean 300, dispersion 61
    left = rng.binomial(counts, 0.4)
    whole = dataclasses.replace(
        find_application("chatbot"), arrival_scv=9.0, dispersion=61.0, rate=5.0
    )
    part = thinned(whole, CHAT, 0.6)
    assert part.dispersion == pytest.approx(left.var() / left.mean(), rel=0.02)
    assert (part.rate, part.arrival_scv, part.refused) == pytest.approx((2.0, 4.2, 0.6))


def test_thinned_gaps_keep_their_law():
    rng = np.random.default_rng(6)
    times = np.cumsum(rng.gamma(0.2, 5.0, 400_000))  # squared cv 5
    gaps = np.diff(times[rng.random(len(times)) < 0.3])
    whole = dataclasses.replace(find_application("chatbot"), arrival_scv=5.0)
    assert thinned(whole, CHAT, 0.7).arrival_scv == pytest.approx(
        gaps.var() / gaps.mean() ** 2, rel=0.03
    )


def test_the_busiest_window_is_steady_traffic():
    peak = Peak(window=10.0, rate=40.0, arrival_scv=2.5)
    whole = dataclasses.replace(
        find_application("chatbot"), rate=3.0, dispersion=99.0, arrivals=np.arange(9.0)
    )
    window = busiest(whole, peak)
    assert (window.rate, window.arrival_scv, window.dispersion) == (40.0, 2.5, 1.0)
    assert not len(window.arrivals)
    assert window.whole is whole
    half = thinned(dataclasses.replace(whole, peak_10s=peak), CHAT, 0.5).peak_10s
    assert half == Peak(window=10.0, rate=20.0, arrival_scv=1.75)
