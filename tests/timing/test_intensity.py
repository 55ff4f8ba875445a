"""FLOP per byte, chunk re-reads and the arithmetic of one request."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluidserve.io.catalog import find_gpu, find_model, gpu_names
from fluidserve.timing.chunking import reread_tokens
from fluidserve.timing.intensity import arithmetic_intensity, compute_bound_length, ridge_point
from fluidserve.timing.model import decode_work, prefill_work
from fluidserve.timing.request import end_to_end_latency, tpot_with_stalls


def test_ridge_points():
    """312 TFLOP/s over 2.039 TB/s, from the data sheet; 8-bit weights double it where they can."""
    assert ridge_point(find_gpu("A100-SXM4-80GB")) == pytest.approx(312 / 2.039, rel=1e-3)
    h100 = find_gpu("H100-SXM")
    assert ridge_point(h100, "fp8") == pytest.approx(2 * ridge_point(h100), rel=0.01)
    assert all(ridge_point(find_gpu(name)) > 1 for name in gpu_names())


def test_intensity_of_dense_matrix_products_is_the_batch():
    """2 N B FLOP over 2 N bytes: B, as long as weights outweigh KV and attention."""
    model = find_model("OPT-13B")
    for batch in (1.0, 16.0):
        assert arithmetic_intensity(model, decode_work(batch, 0.0)) == pytest.approx(
            batch, rel=0.01
        )


def test_intensity_of_decode_saturates_with_context():
    """With endless context only KV is read: multi-head attention has one FLOP per byte."""
    model = find_model("OPT-13B")
    value = arithmetic_intensity(model, decode_work(1.0, 1e12))
    assert value == pytest.approx(model.attention_flop / model.kv_bytes_per_token, rel=1e-3)
    assert value == pytest.approx(1.0, rel=1e-3)


def test_experts_lower_the_intensity():
    dense, mixture = find_model("OPT-13B"), find_model("Mixtral-8x7B")
    batch = decode_work(64.0, 0.0)
    assert arithmetic_intensity(mixture, batch) < 0.5 * arithmetic_intensity(dense, batch)


def test_compute_bound_length_is_where_it_crosses():
    model, gpu = find_model("OPT-13B"), find_gpu("A100-SXM4-80GB")
    length = compute_bound_length(model, gpu)
    ridge = ridge_point(gpu)
    assert arithmetic_intensity(model, prefill_work(float(length))) > ridge
    assert arithmetic_intensity(model, prefill_work(length - 1.0)) <= ridge


def test_compute_bound_length_may_not_exist():
    gpu = dataclasses.replace(find_gpu("A100-SXM4-80GB"), bandwidth=1.0)
    with pytest.raises(ValueError, match="never passes the ridge point"):
        compute_bound_length(find_model("OPT-13B"), gpu)


@given(n_in=st.integers(1, 3000), chunk=st.integers(1, 3000))
def test_reread_counts_every_earlier_chunk(n_in, chunk):
    starts = range(0, n_in, chunk)
    assert reread_tokens(n_in, chunk) == sum(len(range(0, start)) for start in starts)


def test_reread_closed_form_and_limits():
    assert reread_tokens(1000, 1000) == reread_tokens(1000, 5000) == 0
    chunks = 8
    assert reread_tokens(chunks * 512, 512) == 512 * chunks * (chunks - 1) // 2
    assert reread_tokens(10, 1) == 45
    with pytest.raises(ValueError, match="at least 1"):
        reread_tokens(10, 0)


def test_request_arithmetic():
    assert end_to_end_latency(0.3, 0.05, 1) == 0.3
    assert end_to_end_latency(0.3, 0.05, 3) == pytest.approx(0.4)
    assert tpot_with_stalls(0.04, 0.3, 0.0) == 0.04
    assert tpot_with_stalls(0.04, 0.3, 1.0) == 0.3
