"""The loop over iterations of an engine: prompts first, chunked, or decode only.

One step of the loop handles at most one piece of one prompt; when no prompt is due it runs a spell
of decode iterations (`fluidserve.sampled.spell`). Whatever the batch, a step costs the same:

* All requests of a batch advance together, so a request's last iteration is known when its prompt
  is done. A ring keyed by iteration holds how many requests leave at its end, and their tokens;
  a bitmap says which of its places are in use.
* Prompts are computed in order of arrival, so that between two iterations at most one is begun and
  not finished, and it is the head of the queue.

Time is counted in mean gaps between arrivals, so that candidates and rates share the arrivals;
step times are multiplied by the rate. The clock is a whole number and a part of 1, so that
float32 errors do not grow with the length of the trace.

Source: derived in ``docs/theory/sampled.md``.
"""

import functools
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jax import lax

from fluidserve._typing import Number
from fluidserve.sampled.state import Lane, Log, State, head_at, idle_engine
from fluidserve.sampled.step import Policy, Queue, step
from fluidserve.sampled.trace import Rows


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def run(
    policy: Policy, places: int, count_gaps: bool, lanes: Lane, rows: Rows
) -> tuple[Log, jax.Array | None]:
    """Serves a trace on every lane.

    It has no derivative: a path jumps where an arrival and the end of an iteration change places,
    and what automatic differentiation finds between the jumps is wrong by orders of magnitude.
    Take finite differences on one trace, of some per cent of a parameter.

    Args:
      policy: of all lanes.
      places: of the ring, a power of 2 of at least 32 and of at least the most output tokens.
      count_gaps: whether times between tokens are wanted.
      lanes: leaves have the shape (lanes,).
      rows: the trace; arrival times may differ between lanes, (lanes, requests + 1).

    Returns:
      the logs, lanes on the first axis, and the tokens in each bin of `fluidserve.sampled.gaps`.

    Raises:
      TypeError: when differentiated.
    """
    lane_axes = jax.tree.map(lambda _: 0, lanes)
    row_axes = jax.tree.map(lambda x: 0 if x.ndim > 1 else None, rows)
    requests = rows.n_in.shape[-1] - 1
    start = jax.vmap(functools.partial(idle_engine, places, count_gaps), (lane_axes, row_axes))(
        lanes, rows
    )

    def alone(lane: Lane, rows: Rows, s: State) -> State:
        queue = Queue(functools.partial(head_at, rows), requests, lambda i: handover_at(rows, i))
        return step(policy, lane, queue, s)

    every = jax.vmap(alone, (lane_axes, row_axes, 0))

    def body(carry: tuple[jax.Array, State]) -> tuple[jax.Array, State]:
        _, s = carry
        after = every(lanes, rows, s)
        unfinished = (after.head.index < requests) | (after.batch > 0) | (after.opened.joins > 0)
        return jnp.any(unfinished & moved(s, after)), after

    _, s = lax.while_loop(lambda carry: carry[0], body, (jnp.ones((), bool), start))
    return s.log, None if s.gaps is None else s.gaps.tokens


def refuse_derivative(*_: Any) -> NoReturn:
    """The derivative of `run`: there is none."""
    raise TypeError(
        "sampled engines have no derivative that automatic differentiation could find; take finite "
        "differences on the same trace"
    )


run.defjvp(refuse_derivative)


def handover_at(rows: Rows, request: Number) -> Number:
    """Time of the hand-over of a request, see `Rows`."""
    assert rows.handover is not None
    return rows.handover[request]


def moved(before: State, after: State) -> jax.Array:
    """Whether a step did anything; a lane without a finite step time stands still."""
    moves = (after.iteration != before.iteration) | (after.head.index != before.head.index)
    moves = moves | (after.opened.pieces != before.opened.pieces) | (after.held != before.held)
    moves = moves | (after.clock.whole != before.clock.whole)
    moves = moves | (after.clock.part != before.clock.part)
    return moves & jnp.isfinite(after.clock.part)
