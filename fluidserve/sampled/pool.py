"""Several engines of one deployment, between which requests are spread as they come.

The engines advance together, each as far as it can without knowing where the next request goes: up
to the first end of an iteration at or after it comes. When all have come that far, the request
goes to the one that the rule chooses, with the loads of that very moment.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fluidserve._typing import Number
from fluidserve.sampled.engine import handover_at, moved, refuse_derivative
from fluidserve.sampled.state import Clock, Head, Lane, Log, State, head_at, idle_engine, put
from fluidserve.sampled.step import Coming, Policy, Queue, step
from fluidserve.sampled.trace import Rows

_NOWHERE = 1 << 30


class PoolLog(NamedTuple):
    """What a run of several engines leaves behind.

    Attributes:
      engines: the log of each engine, its requests in their own order, (engines, requests + 1).
      queue: which requests these are, (engines, requests + 1).
      engine: where each request went, (requests + 1,).
      place: its index there, (requests + 1,).
    """

    engines: Log
    queue: jax.Array
    engine: jax.Array
    place: jax.Array


class _PoolState(NamedTuple):
    """All engines between two steps; those beyond the deployment's number never get requests."""

    engines: State
    queue: jax.Array
    length: jax.Array
    following: jax.Array  # the request that is sent next
    engine: jax.Array
    place: jax.Array


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2, 3))
def run_pool(
    policy: Policy,
    places: int,
    count_gaps: bool,
    engines: int,
    lanes: Lane,
    replicas: jax.Array,
    rows: Rows,
    to: jax.Array | None,
) -> tuple[PoolLog, jax.Array | None]:
    """Serves a trace on every deployment; see `fluidserve.sampled.engine.run`.

    Args:
      policy: of all engines.
      places: of the ring.
      count_gaps: whether times between tokens are wanted.
      engines: most engines of a deployment.
      lanes: each engine of a deployment, leaves of shape (lanes,); `rate` is that of all of them.
      replicas: engines of each deployment, (lanes,).
      rows: the trace; leaves with lanes on the first axis differ between them.
      to: which engine each request goes to, (lanes, requests); None: the one with fewest requests,
        then the lowest index.

    Returns:
      the logs, lanes on the first axis, and the tokens in each bin of `fluidserve.sampled.gaps`.

    Raises:
      TypeError: when differentiated.
    """
    requests = rows.n_in.shape[-1] - 1
    lane_axes = jax.tree.map(lambda _: 0, lanes)
    row_axes, to_axes = jax.tree.map(lambda x: 0 if x.ndim > 1 else None, (rows, to))
    axes = (lane_axes, row_axes, to_axes, 0)

    def begin(lane: Lane, rows: Rows, _: jax.Array | None, count: jax.Array) -> _PoolState:
        one = idle_engine(places, count_gaps, lane, rows)
        copies = jax.tree.map(lambda x: jnp.broadcast_to(x, (engines, *x.shape)), one)
        entries = jnp.zeros(requests + 1, jnp.int32)
        return _PoolState(
            engines=copies,
            queue=jnp.zeros((engines, requests + 1), jnp.int32),
            length=jnp.zeros(engines, jnp.int32),
            following=jnp.zeros_like(count),
            engine=entries,
            place=entries,
        )

    start = jax.vmap(begin, axes)(lanes, rows, to, replicas)
    advance = jax.vmap(functools.partial(_step, policy), (*axes, 0))

    def body(carry: tuple[jax.Array, _PoolState]) -> tuple[jax.Array, _PoolState]:
        _, s = carry
        after = advance(lanes, rows, to, replicas, s)
        e = after.engines
        unfinished = (e.head.index < after.length) | (e.batch > 0) | (e.opened.joins > 0)
        sends = (s.following < after.following) & jnp.isfinite(e.clock.part).all(-1)
        return jnp.any(unfinished & moved(s.engines, e)) | jnp.any(sends), after

    _, s = lax.while_loop(lambda carry: carry[0], body, (jnp.ones((), bool), start))
    gaps = s.engines.gaps
    log = PoolLog(s.engines.log, s.queue, s.engine, s.place)
    return log, None if gaps is None else gaps.tokens.sum(1)


run_pool.defjvp(refuse_derivative)


def _step(
    policy: Policy,
    lane: Lane,
    rows: Rows,
    engine: jax.Array | None,
    replicas: jax.Array,
    s: _PoolState,
) -> _PoolState:
    """Advances the engines of one deployment, then sends the next request if all are ready."""
    requests = rows.n_in.shape[0] - 1
    exists = s.following < requests
    at = Clock(rows.whole[s.following], rows.part[s.following])

    def alone(engine: State, queue: jax.Array, length: jax.Array) -> State:
        def fetch(index: Number) -> Head:
            return head_at(rows, index, queue[index])

        def handover(index: Number) -> Number:
            return handover_at(rows, queue[index])

        ready = ~exists | (engine.clock.since(at) < 0.0)
        own = Queue(fetch, length, handover)
        return step(policy, lane, own, engine, Coming(ready, exists, at))

    engines = jax.vmap(alone)(s.engines, s.queue, s.length)

    ahead = engines.clock.since(at)
    waiting = s.length - engines.head.index
    idle = (engines.batch + engines.opened.joins + engines.opened.pieces + waiting) == 0
    sends = exists & jnp.all(idle | (ahead >= 0.0))
    load = waiting + engines.batch + jnp.where(ahead > 0.0, engines.gone, 0)
    real = jnp.arange(len(load)) < replicas
    fewest = jnp.argmin(jnp.where(real, load, _NOWHERE)).astype(jnp.int32)
    to = fewest if engine is None else engine[s.following]
    place = s.length[to]
    chosen = (jnp.arange(len(load)) == to) & sends
    new = head_at(rows, place, s.following)
    first = chosen & (waiting == 0)
    head = jax.tree.map(lambda a, b: jnp.where(first, a, b), new, engines.head)
    done = jnp.where(first, lane.cached(new.n_in.astype(lane.rate.dtype)), engines.done)
    queue = s.queue.at[to, place].set(
        jnp.where(sends, s.following, s.queue[to, place]), mode="promise_in_bounds"
    )
    return _PoolState(
        engines=engines._replace(head=head, done=done),
        queue=queue,
        length=s.length + chosen.astype(jnp.int32),
        following=s.following + sends.astype(jnp.int32),
        engine=put(s.engine, s.following, to),
        place=put(s.place, s.following, place),
    )
