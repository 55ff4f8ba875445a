"""Rows on step times, KV sizes and links: no queue, or the mean of one."""

import jax.numpy as jnp
import pytest
from lecture_rows import A100, OPT_13B, OPT_66B, OPT_175B, instance, row

from fluidserve.io.catalog import find_model
from fluidserve.queueing.md1 import capacity, crossover_rate, mean_ttft_pp, mean_ttft_tp
from fluidserve.specs.applications import find_application
from fluidserve.specs.workload import stratified
from fluidserve.stages.kv_link import link_state
from fluidserve.timing.chunking import reread_tokens
from fluidserve.timing.intensity import arithmetic_intensity, compute_bound_length, ridge_point
from fluidserve.timing.interference import iteration_time
from fluidserve.timing.model import decode_time, decode_work, prefill_time
from fluidserve.timing.request import end_to_end_latency, tpot_with_stalls
from fluidserve.timing.saturation import saturation_length

KI, MI, GI = 2.0**10, 2.0**20, 2.0**30
GB, GBIT_PER_S = 1e9, 1e9 / 8


def decode_step(batch, context):
    return decode_time(instance(OPT_13B).times, float(batch), float(batch * context))


def prefill(model, n_in, *, tp=1, pp=1):
    return pp * prefill_time(instance(model, tp=tp, pp=pp).times, float(n_in))


def link(rate, kv_bytes, bandwidth):
    return link_state(
        jnp.array(rate),
        kv_bytes / bandwidth,
        1.0,
        1.0,
        prefill_load=jnp.array(0.0),
        n_prefill=jnp.array(1.0),
    )


def test_ridge_point():
    assert ridge_point(A100) == row("ridge-a100").expected


def test_prefill_becomes_compute_bound_and_saturates():
    assert compute_bound_length(OPT_13B, A100) == row("prefill-compute-bound").expected
    assert saturation_length(instance(OPT_13B)) == row("prefill-saturation").expected
    low, high = (int(x) for x in row("l-m").value.split("-"))
    assert low <= saturation_length(instance(OPT_13B)) <= high


def test_decode_of_one_request():
    assert decode_step(1, 512) == row("decode-b1").expected
    assert 1 / decode_step(1, 512) == row("decode-b1-tput").expected
    prefill_rate = 2048 / prefill(OPT_13B, 2048)
    assert 1 / decode_step(1, 512) / prefill_rate == row("decode-b1-vs-prefill").expected


def test_decode_of_a_batch():
    slower = decode_step(128, 512) / decode_step(1, 512)
    assert slower == row("decode-b128-step").expected
    assert 128 / slower == row("decode-b128-tput").expected
    intensity = arithmetic_intensity(OPT_13B, decode_work(256.0, 256.0 * 512))
    assert intensity == row("decode-intensity").expected


def test_mixing_a_prefill_into_a_decode_iteration():
    assert decode_step(32, 1000) == row("interference-decode-only").expected
    one = instance(OPT_13B)
    alone = iteration_time(one, 32.0, 1000.0)
    assert alone == pytest.approx(decode_step(32, 1000), rel=1e-12)
    mixed = iteration_time(one, 32.0, 1000.0, 1024.0)
    assert mixed == row("interference-mixed").expected
    apart = alone + one.prefill_time(1024.0)
    assert alone < mixed < apart
    assert iteration_time(one, 32.0, 1000.0, 1024.0, before=4096.0) > mixed


def test_kv_of_one_token():
    assert OPT_13B.kv_bytes_per_token / KI == row("kv-per-token-opt13b").expected
    assert OPT_66B.kv_bytes_per_token / MI == row("kv-per-token-opt66b").expected
    assert OPT_175B.kv_bytes_per_token / MI == row("kv-per-token-opt175b").expected
    llama = find_model("Llama-3.1-70B")
    assert llama.kv_bytes_per_token / MI == row("kv-per-token-llama70b").expected


def test_room_for_kv():
    room = instance(OPT_13B).kv_capacity
    assert room == row("kv-capacity").expected
    assert room // 512 == row("kv-max-batch").expected
    assert OPT_175B.weight_bytes / GB == row("weights-175b").expected


def test_latency_of_one_chat_request():
    assert prefill(OPT_13B, 755) == row("idle-ttft-chat").expected
    assert end_to_end_latency(0.104, 0.0307, 200) == row("e2e-chat").expected


def test_latency_exercise():
    assert end_to_end_latency(0.2, 0.04, 300) == row("ex2-e2e").expected
    assert tpot_with_stalls(0.04, 0.3, 0.05) == row("ex2-stall").expected


@pytest.mark.parametrize(
    ("id", "n_in", "chunk"),
    [
        ("chunk-reread-256", 2048, 256),
        ("chunk-reread-512", 4096, 512),
        ("chunk-reread-1024", 4096, 1024),
    ],
)
def test_chunks_read_kv_again(id, n_in, chunk):
    assert reread_tokens(n_in, chunk) == row(id).expected


def test_chunks_read_kv_again_against_the_prompt():
    assert reread_tokens(4096, 512) / 4096 == row("chunk-reread-ratio-512").expected
    assert reread_tokens(4096, 1024) / 4096 == row("chunk-reread-ratio-1024").expected


def test_two_ways_to_use_two_gpus():
    together, in_a_row = prefill(OPT_66B, 512, tp=2), prefill(OPT_66B, 512, pp=2)
    assert together == row("tp2-service").expected
    assert in_a_row == row("pp2-service").expected
    assert capacity(0.215) == row("md1-cap-tp").expected
    assert capacity(0.371, pp=2) == row("md1-cap-pp").expected
    assert crossover_rate(in_a_row, in_a_row / together) == row("md1-crossover").expected
    assert crossover_rate(0.371, 0.371 / 0.215) == row("md1-crossover").expected


@pytest.mark.parametrize(
    ("id_pp", "id_tp", "rate"),
    [
        ("md1-ex-r1-pp", "md1-ex-r1-tp", 1.0),
        ("md1-ex-r2-pp", "md1-ex-r2-tp", 2.0),
        ("md1-ex-r27-pp", "md1-ex-r27-tp", 2.7),
        ("md1-ex-r3-pp", "md1-ex-r3-tp", 3.0),
    ],
)
def test_mean_ttft_exercise(id_pp, id_tp, rate):
    assert mean_ttft_pp(rate, 0.4, 2) == row(id_pp).expected
    assert mean_ttft_tp(rate, 0.4, 1.6) == row(id_tp).expected


def test_crossover_exercise():
    assert crossover_rate(0.4, 1.6) == row("md1-crossover-ex").expected


def test_kv_over_a_link():
    kv = OPT_66B.kv_bytes_per_token * 512
    assert kv / GI == row("kv-66b-512").expected
    # the bandwidth needed is the one that a load of 1 takes
    needed = float(link(10.0, kv, 1.0).load)
    assert needed / GBIT_PER_S == row("kv-66b-link").expected

    kv = OPT_66B.kv_bytes_per_token * 1000
    assert kv / GB == row("kv-66b-1000").expected
    seconds = float(link(0.0, kv, 25 * GBIT_PER_S).transfer)
    assert seconds == row("kv-66b-1000-t").expected
    assert 1 / seconds == row("kv-66b-1000-rate").expected


def test_kv_of_chat_over_a_link():
    prompt = find_application("chatbot").lengths.n_in.quantile(stratified(20_000)).mean()
    kv = OPT_66B.kv_bytes_per_token * prompt
    assert kv / GB == row("kv-chat-mean").expected
    assert 1 / float(link(0.0, kv, 25 * GBIT_PER_S).transfer) == row("kv-25g-rate").expected
