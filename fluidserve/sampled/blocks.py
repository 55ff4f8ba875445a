"""Candidates in blocks of a few fixed widths, so that few programs are compiled."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

WIDTHS = (4, 16, 64, 256)
"""Lanes of a program; beyond 256 their state leaves the caches of a core."""


def in_blocks(
    jobs: Sequence[tuple[int, np.ndarray]],
    evaluate: Callable[[int, np.ndarray], Any],
    engines: int,
    known: set[int],
) -> list[Any]:
    """Evaluates candidates in blocks, on as many threads as there are cores.

    A program runs its loop on one core whatever its width. The first block that runs of a width
    goes first, so that threads do not compile one program twice.

    Args:
      jobs: for each trace its number and the candidates wanted on it, by index.
      evaluate: takes a trace and candidates padded to one of `WIDTHS`, and returns a pytree of
        arrays with candidates on the first axis.
      engines: of each candidate; with several, blocks are narrower.
      known: widths whose program is compiled; completed here.

    Returns:
      for each job the pytree of NumPy arrays, without the padding.
    """
    blocks, widest = [], max(WIDTHS[-1] // engines, WIDTHS[0])
    for number, (trace, wanted) in enumerate(jobs):
        width = next(w for w in WIDTHS if w >= min(len(wanted), widest // 2 + 1))
        for start in range(0, len(wanted), width):
            part = wanted[start : start + width]
            blocks.append((number, trace, len(part), np.resize(part, width)))

    def run(block: tuple[int, int, int, np.ndarray]) -> Any:
        _, trace, count, padded = block
        return jax.tree.map(lambda x: np.asarray(x)[:count], evaluate(trace, padded))

    early = {}
    for place, block in enumerate(blocks):
        width = len(block[-1])
        if width not in known:
            known.add(width)
            early[place] = run(block)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        late = {i: pool.submit(run, b) for i, b in enumerate(blocks) if i not in early}
        done = [early[i] if i in early else late[i].result() for i in range(len(blocks))]
    found = []
    for number in range(len(jobs)):
        parts = [d for d, block in zip(done, blocks, strict=True) if block[0] == number]
        found.append(jax.tree.map(lambda *x: np.concatenate(x), *parts))
    return found
