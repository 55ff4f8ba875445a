"""The largest rate that meets a target: roots, their derivatives, and the cases without one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from fluidserve.goodput import Then, largest_meeting, root_rate


def exponential(rate_scale, target, upper, top=1.0):
    """Attainment ``top * exp(-rate / scale)``: the root is ``scale * log(top / target)``."""
    return largest_meeting(lambda r: top * jnp.exp(-r / rate_scale), target, upper)


_exponential = jax.jit(exponential)


@settings(deadline=None)
@given(scale=st.floats(0.1, 50.0), target=st.floats(0.3, 0.99))
def test_root_of_an_exponential(scale, target):
    expected = -scale * np.log(target)
    upper = 3 * scale
    got = float(_exponential(jnp.array(scale), jnp.array(target), jnp.array(upper)))
    assert got == pytest.approx(expected, abs=2e-5 * upper)


def test_each_candidate_has_its_own_root():
    scales, uppers = jnp.array([1.0, 10.0, 100.0]), jnp.array([2.0, 20.0, 200.0])
    got = _exponential(scales, jnp.array(0.9), uppers)
    np.testing.assert_allclose(got, -np.asarray(scales) * np.log(0.9), rtol=1e-3)
    mapped = jax.vmap(lambda s, u: exponential(s, jnp.array(0.9), u))(scales, uppers)
    np.testing.assert_allclose(mapped, got, rtol=1e-9)


def test_derivatives_of_the_root():
    """R = s log(top / target): exact slopes in scale, target and top, forward and reverse."""

    def root(scale, target, top):
        return exponential(scale, target, jnp.array(30.0), top)

    scale, target, top = (jnp.array(x) for x in (10.0, 0.9, 0.98))
    slopes = jax.grad(root, argnums=(0, 1, 2))(scale, target, top)
    expected = (np.log(0.98 / 0.9), -10 / 0.9, 10 / 0.98)
    np.testing.assert_allclose(slopes, expected, rtol=2e-3)
    forward = jax.jacfwd(root, argnums=(0, 1, 2))(scale, target, top)
    np.testing.assert_allclose(forward, slopes, rtol=1e-9)


def test_derivatives_against_finite_differences():
    def root(scale, target):
        return exponential(scale, target, jnp.array(30.0))

    check_grads(root, (jnp.array(10.0), jnp.array(0.9)), order=1, rtol=5e-3, eps=0.02)


@pytest.mark.parametrize(
    ("attainment", "expected"),
    [
        (lambda r, p: 0.5 * p * jnp.exp(-r), 0.0),  # never enough
        (lambda r, p: 0.0 * r * p, 0.0),
        (lambda r, p: 1.0 + 0.0 * r * p, 4.0),  # always enough
        (lambda r, p: jnp.where(r < 3.0, 1.0, 0.0) + 0.0 * p, 3.0),  # falls off a cliff
        (lambda r, p: jnp.where(r > 0, p * jnp.exp(-r) / r * r, jnp.nan) * 0.5, 0.0),
    ],
)
def test_without_a_root(attainment, expected):
    """Nothing, the upper end, or the edge of the cliff; the derivative is 0, never NaN."""

    def root(p):
        return largest_meeting(lambda r: attainment(r, p), jnp.array(0.9), jnp.array(4.0))

    value, slope = jax.value_and_grad(root)(jnp.array(1.0))
    assert float(value) == pytest.approx(expected, abs=0.01)
    assert float(slope) == 0.0


def test_evaluations_around_the_root():
    def evaluate(rate, on_limits):
        return {"share": jnp.exp(-rate / on_limits), "rate": rate, "limits": on_limits + 0 * rate}

    same, everything = (lambda rate: rate), (lambda found: found)
    rate, (at, below, tighter) = root_rate(
        evaluate,
        lambda found: found["share"],
        jnp.array(0.9),
        jnp.array([2.0, 5.0]),
        then=(
            Then(rate=same, on_limits=1.0, keep=everything),
            Then(rate=lambda rate: 0.99 * rate, on_limits=1.0, keep=lambda found: found["rate"]),
            Then(rate=same, on_limits=0.98, keep=everything),
        ),
    )
    np.testing.assert_allclose(rate, -np.log(0.9), rtol=1e-3)
    np.testing.assert_allclose(at["rate"], rate)
    np.testing.assert_allclose(below, 0.99 * rate)
    np.testing.assert_allclose(tighter["limits"], 0.98)
    np.testing.assert_allclose(at["share"], 0.9, atol=1e-4)


@settings(deadline=None, max_examples=50)
@given(target=st.floats(0.5, 0.98), steep=st.floats(0.1, 100.0))
def test_root_of_a_power(target, steep):
    """Any smooth decreasing curve: here a power of the idle capacity."""
    got = _power(jnp.array(target), jnp.array(steep))
    assert float(got) == pytest.approx(1 - target ** (1 / steep), rel=3e-4, abs=2e-5)
    looser = float(_power(jnp.array(target - 0.1), jnp.array(steep)))
    assert looser > float(got)


@jax.jit
def _power(target, steep):
    return largest_meeting(lambda r: (1.0 - r) ** steep, target, jnp.array(1.0))
