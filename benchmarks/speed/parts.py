"""Where the time of a score at a rate goes: its parts, each in a program of its own."""

import functools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.speed.cases import PROFILES, grid_for, problem_for, rows_of, single_stages
from benchmarks.speed.registry import Finding, Row, measurement
from benchmarks.speed.timing import timed
from fluidserve.deploy.disaggregated import (
    Plan,
    at_rate,
    decode_at,
    evaluate,
    tpot_met,
    ttft_within,
)
from fluidserve.search.rates import CHUNK
from fluidserve.search.score import Picks, as_arrays, candidates, question_of
from fluidserve.specs.slo import Slo
from fluidserve.stages.decode import decode_lengths
from fluidserve.stages.prefill import prefill_shape, prefill_state

_ROUNDS = 20


def _total(tree) -> jax.Array:
    """Something that needs every number of a result."""
    leaves = jax.tree.leaves(tree)
    return sum((jnp.sum(leaf, axis=tuple(range(leaf.ndim - 1))) for leaf in leaves), jnp.zeros(()))


def _prefill(plan: Plan, slo: Slo, rate: jax.Array) -> jax.Array:
    return _total(prefill_state(plan.prefill, plan.system.n_prefill, rate))


def _decode(plan: Plan, slo: Slo, rate: jax.Array) -> jax.Array:
    return _total(decode_at(plan, rate, 0.001 * jnp.ones_like(rate)))


def _states(plan: Plan, slo: Slo, rate: jax.Array) -> jax.Array:
    return _total(at_rate(plan, rate))


def _ttft(plan: Plan, slo: Slo, rate: jax.Array) -> jax.Array:
    return _total(ttft_within(plan, at_rate(plan, rate), slo.ttft))


def _tpot(plan: Plan, slo: Slo, rate: jax.Array) -> jax.Array:
    return _total(tpot_met(plan, at_rate(plan, rate), slo.tpot))


def _all(plan: Plan, slo: Slo, rate: jax.Array) -> jax.Array:
    return evaluate(plan, slo, rate).attainment


PARTS: dict[str, Callable[[Plan, Slo, jax.Array], jax.Array]] = {
    "state of prefill": _prefill,
    "state of decode": _decode,
    "state of all stages": _states,
    "states and shares of TTFT": _ttft,
    "states and shares of TPOT": _tpot,
    "attainment": _all,
}


@functools.partial(jax.jit, static_argnames="part")
def _repeated(plan: Plan, slo: Slo, rate: jax.Array, *, part: str) -> jax.Array:
    def once(i, total):
        return total + PARTS[part](plan, slo, rate * (1.0 + 1e-4 * i))

    return lax.fori_loop(0, _ROUNDS, once, jnp.zeros_like(rate))


@measurement("parts")
def parts() -> Iterator[Row]:
    """CPU time of the parts of a score, tp only."""
    for profile, told in PROFILES.items():
        question, grid = question_of(problem_for(profile)), single_stages(grid_for(profile, 64))
        grid = rows_of(grid, np.resize(np.arange(len(grid)), CHUNK))
        rates = np.random.default_rng(0).uniform(1.0, 60.0, CHUNK)
        picks = Picks(
            prefill=grid.prefill.astype(np.int32),
            decode=grid.decode.astype(np.int32),
            n_prefill=grid.n_prefill.astype(float),
            n_decode=grid.n_decode.astype(float),
            rate=rates,
        )
        question, shapes, picks = as_arrays((question, grid.stacked(), picks))
        ends = prefill_shape(shapes, question.bins, pipelines=False)
        lengths = decode_lengths(question.bins, question.first_token, shapes.kv)
        plan = jax.jit(candidates)(question, shapes, ends, lengths, picks)
        for part in PARTS:
            time = timed(
                functools.partial(_repeated, plan, question.slo, picks.rate, part=part), repeat=3
            )
            each = time.cpu / (_ROUNDS * CHUNK)
            yield Finding(f"CPU time of a score, tp only, {part}, {told}", f"{1e9 * each:.0f} ns")
