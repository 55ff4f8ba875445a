"""The lecture's model: published step times, its limits, floats and arrays alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.timing.instance import build_instance
from fluidserve.timing.model import Work, decode_time, decode_work, prefill_time, prefill_work
from fluidserve.timing.profile import load_profile

PROFILE = load_profile("paper")
A100 = find_gpu("A100-SXM4-80GB")


def times(model, *, tp=1, pp=1):
    build = dict(tp=tp, pp=pp, profile=PROFILE, utilization=PROFILE.memory_utilization)
    return build_instance(find_model(model), A100, **build).times


def test_published_step_times():
    """The paper profile's own numbers (fluidserve/timing/profiles/paper.toml)."""
    assert decode_time(times("OPT-13B"), 1.0, 512.0) == pytest.approx(17.0e-3, rel=2e-3)
    assert prefill_time(times("OPT-13B"), 512.0) == pytest.approx(73.0e-3, rel=2e-3)
    assert 369e-3 < 2 * prefill_time(times("OPT-66B", pp=2), 512.0) < 373.2e-3
    assert 212e-3 < prefill_time(times("OPT-66B", tp=2), 512.0) < 215e-3


def test_decode_of_one_request_by_hand():
    """25.7 GB of weights and one token's KV over 80 % of 2.039 TB/s, and 1 ms."""
    model = find_model("OPT-13B")
    read = model.weight_bytes + model.kv_bytes_per_token * 513
    expected = read / (0.8 * 2.039e12) + 1e-3
    assert decode_time(times("OPT-13B"), 1.0, 512.0) == pytest.approx(expected, rel=1e-9)


def test_prefill_by_hand():
    model, n = find_model("OPT-13B"), 512
    flop = 2 * model.parameters * (n + 96) + 4 * 40 * 5120 * n**2 / 2
    expected = flop / (0.7 * 312e12) + 1e-3
    assert prefill_time(times("OPT-13B"), float(n)) == pytest.approx(expected, rel=1e-9)


def test_speed_up_of_parallelism():
    one, four, row = times("OPT-13B"), times("OPT-13B", tp=4), times("OPT-13B", pp=4)
    work = prefill_time(one, 900.0) - 1e-3
    assert prefill_time(four, 900.0) - 1e-3 == pytest.approx(work / 1.74**2, rel=1e-9)
    assert prefill_time(row, 900.0) - 1e-3 == pytest.approx(work / 4, rel=1e-9)


def test_a_prompt_and_a_decode_step_are_work():
    prompt, step = prefill_work(100.0), decode_work(8.0, 4000.0)
    assert (prompt.new, prompt.attended, prompt.kv_read, prompt.prompts) == (100.0, 5000.0, 0, 1)
    assert (step.new, step.attended, step.kv_read, step.prompts) == (8.0, 4000.0, 4000.0, 0)
    assert (prompt.sequences, step.sequences) == (1, 8.0)


@pytest.mark.parametrize("profile", ["paper", "default"])
@pytest.mark.parametrize("model", ["OPT-13B", "Mixtral-8x7B"])
def test_floats_numpy_and_jax_agree(profile, model):
    build = dict(tp=2, pp=2, profile=load_profile(profile), utilization=0.9)
    model_times = build_instance(find_model(model), A100, **build).times
    batch, context = np.array([1.0, 7.0, 300.0]), np.array([10.0, 5000.0, 1e5])
    pairs = zip(batch.tolist(), context.tolist(), strict=True)
    plain = [decode_time(model_times, b, c) for b, c in pairs]
    assert all(type(x) is float for x in plain)
    np.testing.assert_allclose(decode_time(model_times, batch, context), plain, rtol=1e-12)
    with_jax = jax.jit(decode_time)(model_times, jnp.array(batch), jnp.array(context))
    np.testing.assert_allclose(with_jax, plain, rtol=1e-12)
    mapped = jax.vmap(decode_time, in_axes=(None, 0, 0))(
        model_times, jnp.array(batch), jnp.array(context)
    )
    np.testing.assert_allclose(mapped, plain, rtol=1e-12)
    prompts = [prefill_time(model_times, float(n)) for n in context]
    np.testing.assert_allclose(prefill_time(model_times, jnp.array(context)), prompts, rtol=1e-12)


sizes = st.floats(1.0, 1e5)


@settings(deadline=None)
@given(new=sizes, attended=sizes, kv=sizes, factor=st.floats(1.0, 10.0))
def test_more_work_takes_no_less_time(new, attended, kv, factor):
    model_times = times("Mixtral-8x7B", tp=2)

    def at(**changes):
        work = dict(new=new, attended=attended, kv_read=kv, sequences=1.0, prompts=0.0) | changes
        return model_times.stage_time(Work(**work))

    slack = 1 + 1e-12
    assert at(new=new * factor) * slack >= at()
    assert at(attended=attended * factor) * slack >= at()
    assert at(kv_read=kv * factor) * slack >= at()
