"""Step times as polynomials: by hand, in a search, from a file, and from measurements."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fluidserve.errors import InputError
from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.problem import Problem, engine_for
from fluidserve.search.grid import disaggregated_grid
from fluidserve.specs.applications import find_application
from fluidserve.specs.slo import Slo
from fluidserve.timing.fit import (
    decode_features,
    fit_decode,
    fit_prefill,
    least_squares,
    prefill_features,
)
from fluidserve.timing.instance import build_instance
from fluidserve.timing.model import Work, decode_time, prefill_time
from fluidserve.timing.profile import load_profile

PROFILE = """
name = "measured"
description = "a test"
form = "polynomial"
first_token = "prefill"
memory_utilization = 0.9
memory_of = "usable"
handover_overhead = 0.0

[constants."A100-SXM4-80GB"]
model = "OPT-13B"
stage_overhead = 2e-3
stage_overhead_per_token = 1e-7
provenance = "fitted: by hand"
[constants."A100-SXM4-80GB".prefill]
1 = { fixed = 18e-3, per_token = 1e-4, per_token_squared = 7e-9 }
2 = { fixed = 14e-3, per_token = 7e-5, per_token_squared = 2e-9, per_prompt = 1e-3 }
[constants."A100-SXM4-80GB".decode]
1 = [
  { fixed = 20e-3, per_context_token = 6e-7, per_request = 4e-5 },
  { fixed = 7e-3, per_context_token = 6e-7, per_request = 16e-5, from_batch = 95 },
]
2 = { fixed = 13e-3, per_context_token = 3e-7, per_request = 6e-5 }
"""
A100 = find_gpu("A100-SXM4-80GB")


def read(tmp_path, text=PROFILE):
    file = tmp_path / "measured.toml"
    file.write_text(text)
    return load_profile(str(file))


def times(profile, *, tp=1, pp=1, model="OPT-13B"):
    built = build_instance(find_model(model), A100, tp=tp, pp=pp, profile=profile, utilization=0.9)
    return built.times


def test_prefill_and_decode_by_hand(tmp_path):
    profile = read(tmp_path)
    one = times(profile)
    by_hand = 18e-3 + 1e-4 * 1000 + 7e-9 * 1000**2 + 2e-3 + 1e-7 * 1000
    assert prefill_time(one, 1000.0) == pytest.approx(by_hand, rel=1e-12)
    by_hand = 20e-3 + 6e-7 * 5000 + 4e-5 * 10 + 2e-3 + 1e-7 * 5000
    assert decode_time(one, 10.0, 5000.0) == pytest.approx(by_hand, rel=1e-12)
    by_hand = 7e-3 + 6e-7 * 50_000 + 16e-5 * 100 + 2e-3 + 1e-7 * 50_000
    assert decode_time(one, 100.0, 50_000.0) == pytest.approx(by_hand, rel=1e-12)


def test_a_stage_takes_its_share_and_its_own_overhead(tmp_path):
    profile = read(tmp_path)
    whole = prefill_time(times(profile, tp=2), 500.0) - 2e-3 - 1e-7 * 500
    stage = prefill_time(times(profile, tp=2, pp=4), 500.0) - 2e-3 - 1e-7 * 500
    assert stage == pytest.approx(whole / 4, rel=1e-12)


def test_two_prompts_in_one_pass(tmp_path):
    """Squares add up, so the pass of both is what the sums say."""
    pair = Work(
        new=300.0, attended=0.5 * (100**2 + 200**2), kv_read=0.0, sequences=2.0, prompts=2.0
    )
    by_hand = 14e-3 + 7e-5 * 300 + 2e-9 * (100**2 + 200**2) + 2e-3 + 2e-3 + 1e-7 * 300
    assert times(read(tmp_path), tp=2).stage_time(pair) == pytest.approx(by_hand, rel=1e-12)


def test_arrays_and_floats_agree(tmp_path):
    one = times(read(tmp_path))
    batch, context = np.array([1.0, 94.0, 95.0, 300.0]), np.array([500.0, 4e4, 4e4, 1e5])
    arrays = jax.jit(lambda b, c: decode_time(one, b, c))(jnp.asarray(batch), jnp.asarray(context))
    floats = [decode_time(one, float(b), float(c)) for b, c in zip(batch, context, strict=True)]
    np.testing.assert_allclose(arrays, floats, rtol=1e-9)


def test_a_search_keeps_to_the_degrees_that_were_measured(tmp_path):
    profile = read(tmp_path)
    problem = Problem(
        model=find_model("OPT-13B"),
        gpu=A100,
        workload=find_application("chatbot"),
        slo=Slo(ttft=0.25, tpot=0.1, attainment=0.9),
        engine=engine_for(profile, A100),
    )
    grid = disaggregated_grid(problem, 16)
    assert {s.tp for s in grid.shapes} == {1, 2}
    assert grid.rejected["the profile has no coefficients for tp=4"] > 0


def test_another_model_or_degree_is_refused(tmp_path):
    profile = read(tmp_path)
    with pytest.raises(InputError, match="hold for OPT-13B, not for OPT-66B"):
        times(profile, tp=2, model="OPT-66B")
    with pytest.raises(InputError, match="no coefficients for tp=4; it has 1, 2"):
        times(profile, tp=4)
    anyone = read(tmp_path, PROFILE.replace('"OPT-13B"', '"*"'))
    assert times(anyone, tp=2, model="OPT-66B")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("per_token = 1e-4", "per_tok = 1e-4", r"prefill\.1: unknown key 'per_tok'"),
        ("fixed = 18e-3, ", "", r"prefill\.1: 'fixed' is missing"),
        ("fixed = 18e-3", "fixed = -1", r"prefill\.1: fixed = -1 must be a non-negative"),
        ("1 = { fixed = 18e-3", "x = { fixed = 18e-3", "'x' is no tensor-parallel degree"),
        ("2 = { fixed = 13e-3", "2 = []\n3 = { fixed = 13e-3", "one set of coefficients"),
        ('model = "OPT-13B"\n', "", "'model' is missing"),
    ],
)
def test_a_wrong_file_says_where(tmp_path, old, new, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, PROFILE.replace(old, new))


def test_known_coefficients_come_back():
    """Eight rows without noise, then with 1 %: back to 1e-3, and inside their intervals."""
    n = np.array([64.0, 128, 256, 512, 768, 1024, 1536, 2048])
    found, _ = fit_prefill(n, 0.018 + 1.02e-4 * n + 7.1e-9 * n**2)
    assert found.fixed == pytest.approx(0.018, rel=1e-3)
    assert found.per_token == pytest.approx(1.02e-4, rel=1e-3)
    assert found.per_token_squared == pytest.approx(7.1e-9, rel=1e-3)

    batch = np.array([1.0, 2, 4, 8, 16, 32, 64, 90])
    context = batch * np.array([500.0, 900, 300, 700, 500, 1200, 400, 800])
    step = 0.02 + 6e-7 * context + 4e-5 * batch
    found, fit = fit_decode(batch, context, step)
    assert found.per_request == pytest.approx(4e-5, rel=1e-3)
    assert fit.scatter < 1e-12


def test_the_band_holds_new_measurements():
    """95 % bands from eight noisy rows hold 95 % of new ones: 4 sigma of 2000 repetitions."""
    rng = np.random.default_rng(5)
    n = np.array([64.0, 128, 256, 512, 768, 1024, 1536, 2048])
    x, new = prefill_features(n), prefill_features(np.array([900.0]))
    truth = np.array([0.018, 1e-4, 7e-9])
    inside = 0
    for _ in range(2000):
        fit = least_squares(x, x @ truth + rng.normal(0.0, 1e-3, len(n)))
        low, high = fit.band(new)
        inside += int(low[0] <= (new @ truth)[0] + rng.normal(0.0, 1e-3) <= high[0])
    assert abs(inside / 2000 - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 2000)


def test_too_little_to_fit():
    with pytest.raises(InputError, match="2 measurements cannot fix 3 coefficients"):
        fit_prefill(np.array([1.0, 2.0]), np.array([1.0, 2.0]))
    with pytest.raises(InputError, match="do not vary enough"):
        least_squares(decode_features(np.ones(5), np.full(5, 100.0)), np.ones(5))


def test_a_wrong_coefficient_is_seen(tmp_path):
    right, wrong = read(tmp_path), read(tmp_path, PROFILE.replace("1e-4", "1.1e-4"))
    assert prefill_time(times(wrong), 1000.0) > 1.05 * prefill_time(times(right), 1000.0)
