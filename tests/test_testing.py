import jax.numpy as jnp
import numpy as np
import pytest

from fluidserve.testing import CountTraces, assert_no_nan


def test_count_traces_sees_recompilation():
    power = CountTraces(lambda x, *, n: x**n, static_argnames="n")
    for x in (1.0, 2.0, 3.0):
        power(jnp.array(x), n=2)
    assert power.traces == 1
    power(jnp.array(1.0), n=3)
    assert power.traces == 2
    power(jnp.ones(4), n=3)
    assert power.traces == 3


def test_assert_no_nan_names_the_leaf():
    assert_no_nan({"a": np.zeros(3), "b": 1.0})
    with pytest.raises(AssertionError, match=r"\['a'\]: 1 of 3, first at \[1\]"):
        assert_no_nan({"a": np.array([0.0, np.nan, 1.0]), "b": 1.0})
    with pytest.raises(AssertionError, match="not finite"):
        assert_no_nan(np.inf)
    assert_no_nan(np.inf, infinite=True)
    with pytest.raises(AssertionError, match="NaN"):
        assert_no_nan(np.nan, infinite=True)
