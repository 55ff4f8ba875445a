"""Moments of what requests hold and attend, against sums over the requests themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fluidserve.search.score import as_arrays
from fluidserve.specs.applications import synthetic_workload
from fluidserve.specs.lengths import length_bins
from fluidserve.specs.workload import JointLengths
from fluidserve.stages.decode import decode_lengths
from fluidserve.stages.windowed import prompt_moments
from fluidserve.timing.kv import KvShape

rng = np.random.default_rng(7)
N_IN = np.rint(np.clip(rng.lognormal(7.2, 1.0, 4000), 1, 30_000))
N_OUT = np.rint(np.clip(rng.lognormal(5.5, 0.8, 4000), 1, 4000))
BINS = as_arrays(length_bins(JointLengths(n_in=N_IN, n_out=N_OUT)))
WINDOWS = (1.0, 128.0, 1024.0, 4096.0, 1e6)


def shape(window, held=0.2, state=0.0):
    return as_arrays(KvShape(held=held, read=held, pairs=held, window=window, state=state))


def kept(tokens, kv):
    share, window, state = float(kv.held), float(kv.window), float(kv.state)
    return share * tokens + (1 - share) * np.minimum(tokens, window) + state


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("state", [0.0, 3000.0])
def test_reservations(window, state):
    """Second moments within the 10 % that 12 output bins give up even without a window."""
    kv = shape(window, state=state)
    got = decode_lengths(BINS, "decode", kv)
    need, steps = kept(N_IN + N_OUT, kv), N_OUT
    active = np.average(need, weights=steps)
    assert float(got.reserved) == pytest.approx(active, rel=0.01)
    variance = np.average(need**2, weights=steps) - active**2
    assert float(got.reserved_var) == pytest.approx(variance, rel=0.1, abs=1e-3 * active**2)
    assert float(got.leftover) == pytest.approx((need**2).mean() / (2 * need.mean()), rel=0.02)
    hold = (steps**2 * need**2).mean() / (steps.mean() * active) ** 2 - 1
    assert float(got.hold_scv) == pytest.approx(hold, rel=0.1)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("first_token", ["prefill", "decode"])
def test_tokens_within_the_window(window, first_token):
    after = 1 if first_token == "prefill" else 0
    contexts = np.concatenate(
        [np.arange(i + after, i + o) for i, o in zip(N_IN[:800], N_OUT[:800], strict=True)]
    )
    bins = as_arrays(length_bins(JointLengths(n_in=N_IN[:800], n_out=N_OUT[:800])))
    got = decode_lengths(bins, first_token, shape(window))
    inside = np.minimum(contexts, window)
    slope = np.cov(inside, contexts)[0, 1] / contexts.var()
    line = got.windowed
    assert float(line.level + line.slope * got.context) == pytest.approx(inside.mean(), rel=0.01)
    assert float(line.slope) == pytest.approx(slope, abs=0.02)


@pytest.mark.parametrize("window", WINDOWS)
def test_prompts(window):
    kv = shape(window, state=50.0)
    mean, square = prompt_moments(BINS, kv)
    assert float(mean) == pytest.approx(kept(N_IN, kv).mean(), rel=0.005)
    assert float(square) == pytest.approx((kept(N_IN, kv) ** 2).mean(), rel=0.01)


def test_instances_stand_on_the_last_axis_and_are_picked():
    """Several instances at once are each what they are alone."""
    several = jax.tree.map(lambda *x: jnp.stack(x), shape(128.0), shape(4096.0, 0.5, 10.0))
    got = decode_lengths(BINS, "decode", several)
    assert got.reserved.shape == (2,)
    picked = got.of(jnp.array([1, 1, 0]))
    alone = decode_lengths(BINS, "decode", shape(4096.0, 0.5, 10.0))
    for name in ("reserved", "reserved_var", "hold_scv", "leftover"):
        assert getattr(picked, name)[0] == pytest.approx(float(getattr(alone, name)), rel=1e-5)
    assert picked.windowed.slope[1] == pytest.approx(float(alone.windowed.slope), rel=1e-5)
    assert picked.mean_steps.shape == ()


def test_prompts_of_any_length_are_finite_in_float32():
    """No request has one token: the first output bin is empty."""
    with jax.enable_x64(False):
        bins = as_arrays(length_bins(synthetic_workload(1e7, 5e3, 3.0, 1.0).lengths))
        found = decode_lengths(bins, "decode", shape(4096.0))
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
