"""Derivatives of goodput: finite in every corner, and equal to finite differences where it counts.

With respect to everything that is not a count: limits, links, memory, step times, lengths.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from analysis_helpers import inputs_of, jitted_prepare, make_problem, quick_jit

from fluidserve.deploy.disaggregated import evaluate, largest_rate, prepare
from fluidserve.goodput import largest_meeting
from fluidserve.testing import assert_no_nan


def goodput(system, bins, slo, arrival_scv):
    """Through everything: stage times, queues, attainment, and the root."""
    plan = prepare(system, bins, arrival_scv)
    upper = functools.reduce(jnp.minimum, largest_rate(plan))
    return largest_meeting(lambda r: evaluate(plan, slo, r).attainment, slo.attainment, upper)


_value = quick_jit(goodput)
_slopes = quick_jit(jax.value_and_grad(goodput, argnums=(0, 1, 2, 3)))


@quick_jit
@functools.partial(jax.value_and_grad, argnums=(0, 1, 2, 3, 4))
def _metric_slopes(system, bins, slo, arrival_scv, rate):
    found = evaluate(prepare(system, bins, arrival_scv), slo, rate)
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(found))


PIPELINE = {"model": "OPT-66B", "ttft": 2.5, "tpot": 0.15, "link": 25e9}
FITTED = {
    "model": "Llama-3.1-70B",
    "gpu": "H100-SXM",
    "profile": "default",
    "ttft": 1.0,
    "tpot": 0.05,
    "link": 50e9,
}
CORNERS = {
    "prefill binds": ({"link": 25e9}, "1P2D tp1/tp1"),
    "decode binds": ({"link": 25e9}, "4P1D tp1/tp1"),
    "no link": ({"link": math.inf}, "2P1D tp1/tp1"),
    "the link binds": ({"link": 1e9}, "2P1D tp1/tp1"),
    "hopeless link": ({"link": 1.0}, "2P1D tp1/tp1"),
    "TTFT out of reach": ({"ttft": 1e-6}, "1P1D tp1/tp1"),
    "TPOT out of reach": ({"tpot": 1e-6}, "1P1D tp1/tp1"),
    "no limits": ({"ttft": 1e6, "tpot": 1e6}, "1P1D tp1/tp1"),
    "pipeline": (PIPELINE, "2P1D tp2pp2/tp4"),
    "fitted kernels": (FITTED, "2P1D tp4pp2/tp4"),
}
ZERO = {"hopeless link", "TTFT out of reach", "TPOT out of reach"}


@pytest.mark.parametrize("corner", CORNERS)
def test_gradients_are_finite(corner):
    changes, label = CORNERS[corner]
    value, slopes = _slopes(*inputs_of(make_problem(**changes), label))
    assert_no_nan(slopes)
    if corner in ZERO:
        assert float(value) == 0.0
        assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(slopes))
    else:
        assert float(value) > 0.1


@pytest.mark.parametrize("corner", ["prefill binds", "no link", "fitted kernels"])
@pytest.mark.parametrize("factor", [0.0, 1e-6, 0.5, 1.0, 1.5, 1e3])
def test_gradients_of_every_metric_are_finite_at_any_rate(corner, factor):
    changes, label = CORNERS[corner]
    args = inputs_of(make_problem(**changes), label)
    upper = min(float(x) for x in largest_rate(jitted_prepare(args[0], args[1], args[3])))
    assert_no_nan(_metric_slopes(*args, jnp.array(factor * upper)))


def scaled(tree, path, factor):
    """The tree with one leaf multiplied; `path` as ``prefill.times.overhead``."""
    name, _, rest = path.partition(".")
    leaf = getattr(tree, name)
    changed = scaled(leaf, rest, factor) if rest else leaf * factor
    return dataclasses.replace(tree, **{name: changed})


def elasticity(args, which, path, step=0.01):
    """Relative change of goodput per relative change of an input, both ways."""

    def at(factor):
        changed = list(args)
        if path:
            changed[which] = scaled(args[which], path, factor)
        else:
            changed[which] = args[which] * factor
        return float(_value(*changed))

    value, slopes = _slopes(*args)
    leaf, slope = args[which], slopes[which]
    for name in path.split(".") if path else []:
        leaf, slope = getattr(leaf, name), getattr(slope, name)
    exact = float(jnp.sum(slope * leaf)) / float(value)
    return exact, (at(1 + step) - at(1 - step)) / (2 * step * float(value))


COMPUTE = "prefill.times.per_token"
INPUTS = [
    (2, "ttft"),
    (2, "tpot"),
    (2, "attainment"),
    (3, ""),
    (0, "link_bandwidth"),
    (0, "kv_bytes_per_token"),
    (0, "handover_overhead"),
    (0, COMPUTE),  # FLOP rate of the prefill GPUs
    (0, "prefill.times.per_pair"),
    (0, "prefill.times.overhead"),
    (0, "decode.times.weights"),  # bandwidth of the decode GPUs
    (0, "decode.times.per_kv_token"),
    (0, "decode.kv_capacity"),
    (0, "max_batch"),
    (1, "in_given_out"),
    (1, "gap_mean"),
]


@pytest.mark.parametrize(("which", "path"), INPUTS, ids=[p or "arrival_scv" for _, p in INPUTS])
@pytest.mark.parametrize("corner", ["prefill binds", "pipeline"])
def test_gradients_equal_finite_differences(corner, which, path):
    """Central differences of 1 %; within 5 % of them, or 0.003 as an elasticity."""
    changes, label = CORNERS[corner]
    system, *others = inputs_of(make_problem(**changes), label)
    system = dataclasses.replace(system, handover_overhead=jnp.array(0.02))
    step = 0.002 if path == "attainment" else 0.01
    exact, measured = elasticity((system, *others), which, path, step)
    assert exact == pytest.approx(measured, rel=0.05, abs=3e-3)


def test_prompt_lengths_move_goodput_as_finite_differences_say():
    """All prompt bins stretched together."""
    changes, label = CORNERS["prefill binds"]
    system, bins, slo, scv = inputs_of(make_problem(**changes), label)

    powers = dict.fromkeys(("in_mean", "in_low", "in_high", "in_given_out"), 1)
    powers |= dict.fromkeys(("in_var", "in_square_given_out"), 2)

    def longer(factor):
        changed = {name: getattr(bins, name) * factor**power for name, power in powers.items()}
        return float(_value(system, dataclasses.replace(bins, **changed), slo, scv))

    _, (_, slopes, _, _) = _slopes(system, bins, slo, scv)
    exact = sum(
        power * float(jnp.sum(getattr(slopes, name) * getattr(bins, name)))
        for name, power in powers.items()
    )
    measured = (longer(1.01) - longer(0.99)) / 0.02
    assert measured < 0
    assert exact == pytest.approx(measured, rel=0.05)


def test_signs_of_the_gradient():
    """More time and more hardware help; more variable arrivals and slower stages hurt."""
    changes, label = CORNERS["prefill binds"]
    _, (system, _, slo, scv) = _slopes(*inputs_of(make_problem(**changes), label))
    assert float(slo.ttft) > 0
    assert float(slo.tpot) >= 0
    assert float(slo.attainment) < 0
    assert float(scv) < 0
    assert float(system.prefill.times.per_token) < 0
    assert float(system.link_bandwidth) >= 0


def test_comparison_can_fail():
    changes, label = CORNERS["prefill binds"]
    exact, measured = elasticity(inputs_of(make_problem(**changes), label), 2, "ttft")
    assert 1.2 * exact != pytest.approx(measured, rel=0.05, abs=3e-3)


@pytest.mark.slow
@pytest.mark.parametrize("corner", CORNERS)
def test_gradients_are_finite_in_float32(corner):
    changes, label = CORNERS[corner]
    with jax.enable_x64(False):
        value, slopes = _slopes(*inputs_of(make_problem(**changes), label))
    assert value.dtype == jnp.float32
    assert_no_nan(slopes)
