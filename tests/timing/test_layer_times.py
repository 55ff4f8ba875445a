"""The per-layer model: its parts by hand, its roofline floor, and what parallelism changes."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidserve.io.catalog import find_gpu, find_model, gpu_names
from fluidserve.timing.instance import build_instance
from fluidserve.timing.layers import layer_times
from fluidserve.timing.model import Work, decode_time, decode_work, prefill_time, prefill_work
from fluidserve.timing.profile import LayerConstants, load_profile
from fluidserve.timing.weights import touched_experts

PROFILE = load_profile("default")
MODELS = ["Llama-3.1-8B", "OPT-66B", "Mixtral-8x7B", "Qwen3-30B-A3B", "DeepSeek-V3"]


def instance(model, gpu="H100-SXM", *, tp=1, pp=1):
    build = dict(tp=tp, pp=pp, profile=PROFILE, utilization=0.9)
    return build_instance(find_model(model), find_gpu(gpu), **build)


def floor(model, gpu, work, gpus):
    """What no kernel beats: FLOP at the full peak, bytes at the full bandwidth, on all GPUs.

    Of a mixture of experts only the experts of one token are read, and embeddings are not.
    """
    looked_up = model.embedding_parameters + model.head_parameters
    active = model.active_parameters - looked_up
    flop = 2 * active * work.new + model.attention_flop * work.attended
    peak = max(gpu.flop_rate_16, gpu.flop_rate(model.weight_dtype))
    moved = active * model.weight_bytes / model.parameters
    moved += model.kv_bytes_per_token * (work.kv_read + work.new)
    return max(flop / peak, moved / gpu.bandwidth) / gpus


@pytest.mark.parametrize("gpu", gpu_names())
@pytest.mark.parametrize("model", MODELS)
def test_never_below_the_roofline(model, gpu):
    works = [prefill_work(n) for n in (1.0, 64.0, 2048.0, 1e5)]
    works += [decode_work(b, b * c) for b in (1.0, 32.0, 1024.0) for c in (1.0, 4096.0)]
    for tp, pp in ((1, 1), (4, 1), (2, 3), (8, 2)):
        times = instance(model, gpu, tp=tp, pp=pp).times
        for work in works:
            least = floor(find_model(model), find_gpu(gpu), work, tp * pp)
            assert pp * times.stage_time(work) >= least


def test_floor_can_be_missed():
    """The floor is no empty bound: a decode step of a large model lies within a factor of two."""
    model, gpu = find_model("OPT-66B"), find_gpu("H100-SXM")
    work = decode_work(1.0, 512.0)
    taken = instance("OPT-66B").times.stage_time(work)
    assert taken < 2 * floor(model, gpu, work, 1)
    assert 0.4 * taken < floor(model, gpu, work, 1)


@pytest.mark.parametrize("model", ["Llama-3.1-70B", "Mixtral-8x7B"])
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (8, 1), (4, 4)])
@settings(deadline=None, max_examples=40)
@given(
    new=st.floats(1.0, 1e4),
    context=st.floats(1.0, 1e6),
    batch=st.floats(1.0, 1e3),
    factor=st.floats(1.0, 10.0),
)
def test_monotone_in_tokens_batch_and_context(model, tp, pp, new, context, batch, factor):
    times = instance(model, tp=tp, pp=pp).times
    slack = 1 + 1e-12
    assert prefill_time(times, new * factor) * slack >= prefill_time(times, new)
    assert decode_time(times, batch, context * factor) * slack >= decode_time(times, batch, context)
    assert decode_time(times, batch * factor, context) * slack >= decode_time(times, batch, context)


def bare_constants(**changes):
    """Constants of an ideal machine: sharp roofline, no launches, no host."""
    nothing = dict.fromkeys(LayerConstants.__dataclass_fields__, 0.0)
    shares = {k: 1.0 for k in nothing if k.endswith("_efficiency")}
    ideal = nothing | shares | {"gemm_norm": 400.0, "host_norm": 400.0, "provenance": "assumed"}
    return LayerConstants(**(ideal | changes))


def test_dense_decode_by_hand():
    """Without launches and host a step of one token is the read of everything once."""
    model, gpu = find_model("Llama-3.1-8B"), find_gpu("H100-SXM")
    times = layer_times(model, gpu, tp=1, pp=1, constants=bare_constants())
    read = model.weight_bytes - 2.0 * model.embedding_parameters
    read += model.kv_bytes_per_token * 1001
    width = 10 * 4096 + 1.5 * (2 * 14336 + 3 * 4096)
    activations = 2 * width * 32
    expected = (read + activations) / gpu.bandwidth
    assert decode_time(times, 1.0, 1000.0) == pytest.approx(expected, rel=1e-9)


def test_collectives_by_hand():
    model, gpu = find_model("Llama-3.1-8B"), find_gpu("H100-SXM")
    alone = layer_times(model, gpu, tp=1, pp=1, constants=bare_constants())
    four = layer_times(model, gpu, tp=4, pp=1, constants=bare_constants(all_reduce_latency=1e-5))
    assert alone.communication == alone.communication_per_token == 0.0
    assert four.communication == pytest.approx(2 * 32 * 1e-5)
    moved = 2 * 32 * 2 * (3 / 4) * 2 * 4096
    assert four.communication_per_token == pytest.approx(moved / gpu.scale_up_bandwidth)


@pytest.mark.parametrize(("tp", "where"), [(4, "scale_up_bandwidth"), (8, "scale_out_bandwidth")])
def test_a_hop_leaves_the_node_when_the_stages_do(tp, where):
    """Activations of one token, 2 bytes each: in the node, or the GPUs' part of its net."""
    hidden, gpu = find_model("OPT-66B").hidden, find_gpu("H100-SXM")
    one, two = (instance("OPT-66B", tp=tp, pp=pp).times for pp in (1, 2))
    hop = two.communication_per_token - one.communication_per_token / 2
    assert hop == pytest.approx(2 * hidden / getattr(gpu, where), rel=1e-9)


def test_the_slowest_stage_sets_the_pace():
    """Layers that do not divide: three stages of 64 layers take what 22 layers take."""
    third, whole = instance("OPT-66B", pp=3).times, instance("OPT-66B").times
    assert third.weights == pytest.approx(whole.weights * 22 / 64)


def test_host_time_hides_behind_a_long_pass():
    small, large = instance("Llama-3.2-1B").times, instance("OPT-66B").times
    host = PROFILE.constants_for("H100-SXM").host_floor
    assert decode_time(small, 1.0, 10.0) > host
    work = decode_work(1.0, 10.0)
    without = large.stage_time(work)
    assert without == pytest.approx(
        large.__class__(**(vars(large) | {"host_floor": 0.0})).stage_time(work), rel=1e-6
    )


@given(miss=st.floats(0.0, 1.0), tokens=st.floats(1.0, 1e4))
def test_touched_experts_is_a_share(miss, tokens):
    share = touched_experts(miss, tokens)
    assert 0.0 <= share <= 1.0
    assert touched_experts(miss, tokens + 1.0) >= share


def test_touched_experts_of_known_batches():
    """One token touches k of n experts; many touch all; two by inclusion and exclusion."""
    assert touched_experts(1 - 2 / 8, 1.0) == pytest.approx(2 / 8)
    assert touched_experts(1 - 2 / 8, 2.0) == pytest.approx(2 * 0.25 - 0.25**2)
    assert touched_experts(1 - 2 / 8, 500.0) == pytest.approx(1.0)


def test_experts_are_read_as_they_are_touched():
    model = find_model("Mixtral-8x7B")
    times = instance("Mixtral-8x7B", tp=2).times

    def read(tokens):
        work = Work(new=tokens, attended=0.0, kv_read=0.0, sequences=0.0, prompts=0.0)
        return times.stage_time(work)

    experts = 2.0 * model.expert_parameters / 2
    constants = PROFILE.constants_for("H100-SXM")
    bandwidth = find_gpu("H100-SXM").bandwidth * constants.weight_read_efficiency
    assert times.expert_weights == pytest.approx(experts / bandwidth)
    grown = read(8.0) - read(1.0)
    touched = touched_experts(0.75, 8.0) - 0.25
    assert grown == pytest.approx(touched * times.expert_weights, rel=0.15)


def test_kv_room_by_hand():
    model, gpu = find_model("Llama-3.1-70B"), find_gpu("H100-SXM")
    free = 4 * 0.9 * gpu.usable_memory - model.weight_bytes
    got = instance("Llama-3.1-70B", tp=4).kv_capacity
    assert got == pytest.approx(free / model.kv_bytes_per_token, rel=1e-12)
    assert math.isclose(got, instance("Llama-3.1-70B", tp=2, pp=2).kv_capacity)


def test_kv_heads_beyond_tp_are_stored_more_than_once():
    model, gpu = find_model("Qwen3-30B-A3B"), find_gpu("H100-SXM")
    assert model.kv_heads == 4
    assert [model.kv_copies(tp) for tp in (1, 2, 4, 8, 16)] == [1, 1, 1, 2, 4]
    free = 8 * 0.9 * gpu.usable_memory - model.weight_bytes
    expected = free / (2 * model.kv_bytes_per_token)
    assert instance("Qwen3-30B-A3B", tp=8).kv_capacity == pytest.approx(expected, rel=1e-12)


def test_weights_that_do_not_fit_leave_no_room():
    assert instance("Llama-3.1-405B").kv_capacity < 0
