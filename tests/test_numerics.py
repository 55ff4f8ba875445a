import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from fluidserve._numerics import maximum, minimum, p_norm, ratio

positive = st.floats(1e-9, 1e9)


@pytest.mark.parametrize("kind", [float, np.array, jnp.array])
def test_larger_and_smaller(kind):
    assert maximum(kind(2.0), kind(3.0)) == 3.0
    assert minimum(kind(2.0), kind(3.0)) == 2.0
    assert maximum(kind(2.0), 3) == 3.0


def test_plain_numbers_stay_plain():
    assert type(maximum(1.0, 2.0)) is float
    assert type(minimum(1, 2)) is int
    assert isinstance(maximum(np.ones(2), 2.0), np.ndarray)
    assert isinstance(maximum(jnp.ones(2), np.ones(2)), jax.Array)


@settings(deadline=None)
@given(a=positive, b=positive, p=st.floats(1.0, 50.0))
def test_p_norm_lies_between_maximum_and_sum(a, b, p):
    value = p_norm(a, b, p)
    assert max(a, b) * (1 - 1e-12) <= value <= (a + b) * (1 + 1e-12)
    assert value == p_norm(b, a, p)
    assert value == pytest.approx(float(p_norm(jnp.array(a), jnp.array(b), p)), rel=1e-12)


def test_p_norm_limits():
    assert p_norm(3.0, 4.0, 1.0) == 7.0
    assert p_norm(3.0, 4.0, 2.0) == pytest.approx(5.0)
    assert p_norm(3.0, 4.0, 500.0) == pytest.approx(4.0, rel=1e-12)
    assert p_norm(3.0, 0.0, 1.45) == 3.0


@pytest.mark.parametrize("kind", [float, np.array, jnp.array])
def test_p_norm_of_two_zeros_is_zero(kind):
    assert p_norm(kind(0.0), kind(0.0), 1.45) == 0.0


def test_p_norm_in_float32_at_the_edges():
    with jax.enable_x64(False):
        huge, tiny = jnp.float32(1e30), jnp.float32(1e-30)
        assert math.isclose(p_norm(huge, huge, 6.0), 1e30 * 2 ** (1 / 6), rel_tol=1e-6)
        assert math.isclose(p_norm(tiny, tiny, 6.0), 1e-30 * 2 ** (1 / 6), rel_tol=1e-6)


def test_p_norm_gradients():
    check_grads(lambda a, b: p_norm(a, b, 1.45), (0.3, 2.0), order=1, rtol=1e-6)
    slope = jax.grad(p_norm)(jnp.array(0.0), jnp.array(2.0), 1.45)
    assert slope == 0.0


def test_ratio_gradients():
    check_grads(ratio, (jnp.array(0.3), jnp.array(2.0)), order=2, rtol=1e-6)


def test_derivatives_of_tiny_numbers_in_float32():
    with jax.enable_x64(False):
        rare = jnp.float32(1e-18)
        assert float(jax.grad(lambda x: 1e3 * ratio(0.0 * rare, x))(rare)) == 0.0
        short = jnp.float32(1.5e-13)
        curvature = jax.grad(jax.grad(lambda x: p_norm(0.0 * x, x, 1.45)))(short)
        assert float(curvature) == 0.0
