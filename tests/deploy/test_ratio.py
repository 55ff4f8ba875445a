"""Whole numbers of instances from two rates, against every split there is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluidserve.deploy.ratio import best_split, pooled_goodput

rates = st.floats(0.01, 100.0)


def test_the_weaker_pool_sets_the_rate():
    assert pooled_goodput(6.0, 15.0, 3, 1) == 15.0
    assert pooled_goodput(6.0, 15.0, 1, 9) == 6.0


@pytest.mark.parametrize(
    ("prefill", "decode", "expected"),
    [(1.0, 1.0, (1, 1)), (2.0, 1.0, (1, 2)), (1.0, 3.0, (3, 1)), (6.0, 15.0, (5, 2))],
)
def test_rates_that_divide_leave_nothing_idle(prefill, decode, expected):
    """The smallest whole numbers with n * prefill = k * decode."""
    assert best_split(prefill, decode, most=16) == expected


@given(prefill=rates, decode=rates, most=st.integers(2, 20))
def test_no_split_is_better(prefill, decode, most):
    n, k = best_split(prefill, decode, most=most)
    assert n >= 1
    assert k >= 1
    assert n + k <= most
    found = pooled_goodput(prefill, decode, n, k) / (n + k)
    harmonic = 1 / (1 / prefill + 1 / decode)  # what fractions of instances would reach
    assert found <= harmonic * (1 + 1e-12)
    for i in range(1, most):
        for j in range(1, most - i + 1):
            assert found >= pooled_goodput(prefill, decode, i, j) / (i + j)


def test_fewer_than_two_instances():
    with pytest.raises(ValueError, match="at least two"):
        best_split(1.0, 1.0, most=1)
