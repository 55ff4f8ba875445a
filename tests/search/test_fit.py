"""Whether a model fits, by hand."""

import dataclasses

import pytest

from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.search.fit import Question, fits, nothing_holds, smallest
from fluidserve.timing.profile import load_profile


def question(model="Llama-3.3-70B", gpu="H100", *, dtype="fp8", context=131072, share=0.9):
    return Question(
        model=find_model(model, dtype),
        gpu=find_gpu(gpu),
        profile=load_profile("default"),
        utilization=share,
        context=context,
    )


def test_by_hand():
    """81,559 MiB, of which 90%; 320 KiB of KV per token; weights of a byte, and of two where they
    are the tables at both ends or the 161 norms."""
    asked = question()
    (one,) = [fit for fit in fits(asked, 8) if (fit.tp, fit.pp) == (4, 1)]
    assert one.memory_bytes == pytest.approx(0.9 * 81559 * 2**20)
    in_16_bits = 2 * 128256 * 8192 + 161 * 8192
    assert one.weight_bytes == pytest.approx((asked.model.parameters + in_16_bits) / 4)
    assert one.kv_tokens == pytest.approx(4 * one.free_bytes / (320 * 2**10))
    assert one.concurrency == pytest.approx(one.kv_tokens / 131072)
    assert one.users == 5
    assert smallest(fits(asked, 8), 5) == one
    best = smallest(fits(asked, 8), 6)
    assert best is not None
    assert (best.tp, best.pp) == (8, 1)


def test_every_split_within_the_limits_is_there():
    found = fits(question(), 8)
    assert len(found) == 10
    assert all(fit.gpus <= 8 for fit in found)
    assert [fit.gpus for fit in found] == sorted(fit.gpus for fit in found)
    assert {fit.tp for fit in fits(question(gpu="gb200"), 72)} == {1, 2, 4, 8, 16, 32, 64}
    assert {fit.tp for fit in fits(question("Qwen2.5-7B"), 8)} == {1, 2, 4}  # 28 heads


def test_heads_stored_twice_hold_less_and_stages_do_not():
    found = {(fit.tp, fit.pp): fit for fit in fits(question(gpu="gb200"), 16)}
    assert found[16, 1].kv_tokens == pytest.approx(found[8, 2].kv_tokens / 2)
    best = smallest(list(found.values()), found[16, 1].users + 1)
    assert best is not None
    assert best.pp == 2 or best.gpus < 16


def test_more_memory_fewer_bytes_and_shorter_requests_hold_more():
    base = fits(question(), 8)[-1]
    assert fits(question(share=0.95), 8)[-1].users > base.users
    assert fits(question(context=1000), 8)[-1].users > base.users
    assert fits(question(dtype=None), 8)[-1].users < base.users


@pytest.mark.parametrize(
    ("changes", "users", "reason", "nearest"),
    [
        (
            {},
            100,
            "holds fewer than 100 requests",
            "9 replicas of tp8 pp1, 12 requests each, on 72",
        ),
        (
            {"model": "Llama-3.1-405B", "dtype": None},
            1,
            "the weights do not fit",
            "16 GPUs (tp8 pp2) on 2 nodes holds 6",
        ),
        (
            {"context": 2_000_000},
            1,
            "the KV of one request does not fit",
            "16 GPUs (tp8 pp2) on 2 nodes holds 1",
        ),
        ({"context": 10**9}, 1, "the KV of one request", "does not fit on H100-SXM at any tp"),
    ],
)
def test_nothing_holds_it(changes, users, reason, nearest):
    asked = question(**changes)
    found = fits(asked, 8)
    assert smallest(found, users) is None
    error = nothing_holds(asked, found, users)
    assert sum(error.reasons.values()) == error.candidates == len(found)
    assert any(reason in text for text in error.reasons)
    assert nearest in error.nearest


def test_replicas_are_the_cheapest_ones():
    """tp4 holds 5 and tp8 12, so 10 requests take one tp8 rather than two tp4."""
    asked = question()
    small = [fit for fit in fits(asked, 4) if fit.users]
    error = nothing_holds(asked, small, 10)
    assert "2 replicas of tp4 pp1" in error.nearest
    assert "on 8 GPUs" in error.nearest


def test_memory_of_the_data_sheet_where_the_profile_says_so():
    asked = dataclasses.replace(question(), profile=load_profile("paper"))
    assert fits(asked, 1)[0].memory_bytes == pytest.approx(0.9 * 80e9)


def test_layers_with_a_window_forget():
    """By hand: half the layers keep all tokens, half the last 1,000 of them."""
    asked = question()
    full = asked.model
    windowed = dataclasses.replace(
        full,
        window=1000,
        window_kv_heads=full.kv_heads,
        kv_bytes_per_token=full.kv_bytes_per_token / 2,
        kv_window_bytes=1000 * full.kv_bytes_per_token / 2,
    )
    for context, holds in ((500, 500.0), (10_000, 5_500.0)):
        a = fits(dataclasses.replace(asked, context=context), 8)[-1]
        b = fits(dataclasses.replace(asked, model=windowed, context=context), 8)[-1]
        assert b.held == pytest.approx(holds)
        assert b.concurrency == pytest.approx(a.concurrency * context / holds)
        assert b.kv_tokens == pytest.approx(b.concurrency * context)
        assert a.kv_tokens == pytest.approx(a.room)
