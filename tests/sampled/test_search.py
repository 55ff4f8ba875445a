"""The root search on margins whose roots are known."""

import numpy as np
import pytest

from fluidserve.sampled.search import search


def logistic(roots, steep):
    """Log-odds that fall with the logarithm of the rate."""
    return lambda i, rates: -steep[i] * np.log(rates / roots[i])


@pytest.mark.parametrize("off", [1.0, 1.2, 0.8, 3.0, 0.2, 40.0, 0.02])
def test_finds_roots_from_guesses_that_are_off(off):
    roots, steep = np.array([0.3, 5.0, 5.0, 900.0]), np.array([3.0, 8.0, 30.0, 15.0])
    found = search(logistic(roots, steep), roots * off)
    assert found.bracketed.all()
    np.testing.assert_allclose(found.rate, roots, rtol=5e-3)


def test_takes_few_evaluations_from_a_usual_guess():
    rng = np.random.default_rng(0)
    roots, steep = rng.uniform(1, 50, 200), rng.uniform(5, 30, 200)
    found = search(logistic(roots, steep), roots * np.exp(rng.normal(0, 0.15, 200)), evaluations=4)
    np.testing.assert_allclose(found.rate, roots, rtol=5e-3)
    assert found.evaluations.mean() < 5.0


def test_a_jump_is_met_from_below():
    found = search(lambda i, r: np.where(r <= 7.0, 3.0, -3.0), np.array([5.0, 9.0]))
    assert (found.rate <= 7.0).all()
    np.testing.assert_allclose(found.rate, 7.0, rtol=5e-3)


def test_promises_that_are_never_or_always_kept():
    found = search(lambda i, r: np.where(i == 0, -2.0, 2.0) + 0.0 * r, np.array([5.0, 5.0]))
    assert found.rate[0] == 0.0
    assert found.bracketed.tolist() == [True, False]
    assert found.rate[1] > 1000.0
