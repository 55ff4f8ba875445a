import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluidserve.timing.kv import KvShape, tokens_held
from fluidserve.timing.model import decode_work, prefill_work

SLIDING = KvShape(held=0.25, read=0.25, pairs=0.4, window=128.0, state=0.0)
STATE = KvShape(held=1.0, read=1.0, pairs=1.0, window=1e9, state=700.0)
SPARSE = KvShape(held=1.0, read=0.1, pairs=0.2, window=2048.0, state=0.0)


def test_a_quarter_of_the_layers_keeps_everything():
    assert SLIDING.tokens_held(100.0) == 100.0
    assert SLIDING.tokens_held(1128.0) == pytest.approx(0.25 * 1128 + 0.75 * 128)
    assert STATE.tokens_held(100.0) == 800.0
    assert SPARSE.tokens_held(10_000.0) == 10_000.0
    assert tokens_held(None, 77) == 77


@given(st.integers(1, 600), st.sampled_from([SLIDING, STATE, SPARSE]))
def test_pairs_add_up_token_by_token(n, kv):
    t = np.arange(n) + 0.5  # tokens before the middle of each
    attended = kv.pairs * t + (1 - kv.pairs) * np.minimum(t, kv.window)
    assert kv.causal_pairs(float(n)) == pytest.approx(attended.sum(), rel=1e-6)


def test_cached_tokens_are_read_within_the_window_and_do_not_attend():
    work = SLIDING.prefill_work(1000.0, 0.5)
    whole, half = SLIDING.causal_pairs(1000.0), SLIDING.causal_pairs(500.0)
    assert work.new == 500.0
    assert work.attended == pytest.approx(whole - half)
    assert work.kv_read == pytest.approx(0.25 * 500 + 0.75 * 128)
    assert STATE.prefill_work(1000.0).kv_read == 700.0  # written once
    assert STATE.prefill_work(1000.0, 0.5).kv_read == 500.0 + 2 * 700.0  # and read


def test_without_windows_and_state_nothing_changes():
    plain = KvShape(held=1.0, read=1.0, pairs=1.0, window=64.0, state=0.0)
    assert plain.prefill_work(300.0) == prefill_work(300.0)
    assert plain.prefill_work(300.0, 0.25) == prefill_work(300.0, 0.25)
    assert plain.decode_work(3.0, 900.0, 192.0) == decode_work(3.0, 900.0)


def test_a_step_reads_windows_and_moves_the_state_of_every_request():
    contexts = np.array([50.0, 500.0, 5000.0])
    work = SPARSE.decode_work(3.0, contexts.sum(), np.minimum(contexts, 2048.0).sum())
    assert work.kv_read == pytest.approx(0.1 * 5550 + 0.9 * (550 + 2048))
    assert work.attended == pytest.approx(0.2 * 5550 + 0.8 * (550 + 2048))
    assert STATE.decode_work(3.0, 5550.0, 5550.0).kv_read == 5550.0 + 2 * 3 * 700.0
