"""``python -m benchmarks.nan_sweep --count N`` prints a Markdown table; exit status 1 with any NaN.

Values and derivatives are those of float32. Infinities are counted as well: a latency is infinite
where a stage is overloaded, but no derivative should be.
"""

import argparse
import sys
import time
from collections import Counter
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.nan_sweep.draws import CHUNK, KINDS, draw
from benchmarks.nan_sweep.programs import PROGRAMS, Program, compiled


class Found(NamedTuple):
    """What a sweep has met.

    Attributes:
      candidates: how many were drawn.
      values: how many of them have a NaN among their values.
      slopes: how many have a NaN among their derivatives.
      infinite: how many have an infinite derivative.
      where: candidates by the leaf with the NaN; a leaf of the lengths counts the chunk.
    """

    candidates: int
    values: int
    slopes: int
    infinite: int
    where: Counter[str]


def sweep(program: Program, kind: str, count: int, seed: int, run: Any) -> Found:
    """Draws at least `count` candidates of a kind and counts those with NaN."""
    rng = np.random.default_rng(seed)
    chunks, values, slopes, infinite, where = -(-count // CHUNK), 0, 0, 0, Counter()
    for _ in range(chunks):
        leaves = jax.tree_util.tree_flatten_with_path(run(draw(program, kind, rng)))[0]
        nan = {"value": np.zeros(CHUNK, bool), "slope": np.zeros(CHUNK, bool)}
        endless = np.zeros(CHUNK, bool)
        for path, leaf in leaves:
            name, numbers = jax.tree_util.keystr(path), np.asarray(leaf)
            which = "value" if path[0].key == "value" else "slope"
            wrong = _any_of(np.isnan(numbers))
            nan[which] |= wrong
            if wrong.any():
                where[name] += int(wrong.sum())
            if which == "slope":
                endless |= _any_of(np.isinf(numbers))
        values, slopes = values + int(nan["value"].sum()), slopes + int(nan["slope"].sum())
        infinite += int(endless.sum())
    return Found(chunks * CHUNK, values, slopes, infinite, where)


def _any_of(wrong: np.ndarray) -> np.ndarray:
    """By candidate; the first one stands for a chunk where a leaf is shared by all of it."""
    if wrong.shape[-1:] == (CHUNK,):
        return np.asarray(wrong.reshape(-1, CHUNK).any(0))
    shared = np.zeros(CHUNK, bool)
    shared[0] = wrong.any()
    return shared


def main() -> int:
    """Prints the table; the exit status."""
    parser = argparse.ArgumentParser(description="Looks for NaN in values and derivatives.")
    parser.add_argument("--count", type=int, default=1_000_000, help="candidates in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="programs whose name has this in it")
    options = parser.parse_args()
    print("| program | draws | candidates | NaN values | NaN slopes | infinite slopes | where |")
    print("|---|---|---|---|---|---|---|")
    total, failed, began = 0, 0, time.process_time()
    for program in PROGRAMS:
        if options.only not in program.name:
            continue
        run = compiled(program)
        for kind in KINDS:
            count = round(0.5 * program.part * options.count)
            found = sweep(program, kind, count, options.seed, run)
            total, failed = total + found.candidates, failed + found.values + found.slopes
            where = ", ".join(f"`{leaf}` {n}" for leaf, n in found.where.most_common(3)) or "-"
            row = (program.name, kind, f"{found.candidates:,}", *found[1:4], where)
            print("| " + " | ".join(map(str, row)) + " |", flush=True)
    print(f"\n{total:,} candidates, {failed} with NaN, {time.process_time() - began:.0f} s of CPU")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
