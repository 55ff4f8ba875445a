"""What an unlimited prefix cache finds in a trace, by hand."""

import numpy as np
import pytest

from fluidserve.io.prefix import prefix_reuse
from fluidserve.io.trace import Trace


def trace(n_in, ids):
    hash_ids = None if ids is None else [np.array(i, int) for i in ids]
    n_in = np.array(n_in)
    return Trace(name="made", format="", n_in=n_in, n_out=np.ones_like(n_in), hash_ids=hash_ids)


def test_shared_beginnings_are_found():
    found = prefix_reuse(trace([1000, 1200, 700], [[1, 2], [1, 2, 3], [1, 4]]))
    # of 7 blocks of 512 tokens the second prompt finds two and the third one
    assert found.blocks == pytest.approx(3 / 7)
    assert found.tokens == pytest.approx(3 * 512 / 2900)


def test_a_block_behind_a_new_one_is_not_found():
    assert prefix_reuse(trace([1000, 1000], [[1, 2], [3, 2]])).blocks == 0.0


def test_a_prompt_seen_before_is_found_whole():
    found = prefix_reuse(trace([700, 700], [[1, 2], [1, 2]]))
    assert (found.blocks, found.tokens) == (0.5, 0.5)


def test_a_prompt_does_not_find_itself():
    assert prefix_reuse(trace([1024], [[1, 1]])).blocks == 0.0


def test_other_block_sizes():
    # 16 tokens a block: 33 tokens are three blocks
    assert prefix_reuse(trace([33, 40], [[1, 2, 3], [1, 2, 4]])).tokens == pytest.approx(32 / 73)
    # counts that fit no power of two: an even share of each prompt
    assert prefix_reuse(trace([30, 30], [[1, 2, 3], [1, 4, 5]])).tokens == pytest.approx(10 / 60)


def test_nothing_known():
    assert prefix_reuse(trace([5, 6], None)) is None
    assert prefix_reuse(trace([5, 6], [[], []])) is None
