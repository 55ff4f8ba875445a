"""One step of an engine: a piece of a prompt, and what iterations can start without another one."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fluidserve._typing import Number
from fluidserve.sampled.gaps import GapCount
from fluidserve.sampled.spell import duration, iterations_until, spell_of
from fluidserve.sampled.state import (
    NEVER,
    Admission,
    Clock,
    Head,
    Lane,
    Log,
    Opened,
    State,
    put,
)
from fluidserve.timing.model import decode_work

Policy = Literal["prompts-first", "chunked", "decode", "decode-first"]
"""``decode``: prompts are computed elsewhere, and their first token is out; they join at once.
``decode-first``: the same, and the first iteration makes the first token."""

_NO_TOKENS = 1e-3
"""Less than that of a prompt is a rounding error (a cached share need not be whole tokens)."""


class _Piece(NamedTuple):
    """What a step takes of the head's prompt.

    Attributes:
      taken: whether it takes anything.
      finishes: whether it is the last piece.
      size: its tokens.
      left: tokens that the iteration could still take; None where there is no such limit.
    """

    taken: jax.Array
    finishes: jax.Array
    size: jax.Array
    left: jax.Array | None


class Queue(NamedTuple):
    """What waits, or has waited, for an engine.

    Attributes:
      fetch: the request at an index.
      length: how many there are.
      handover: of a request at an index; see `Rows`. Not asked where prompts are computed here.
    """

    fetch: Callable[[Number], Head]
    length: Number
    handover: Callable[[Number], Number]


class Coming(NamedTuple):
    """What an engine knows of requests that are not in its queue yet but may come.

    Attributes:
      ready: whether it may start an iteration now.
      exists: whether there is one.
      at: when the next one comes, if there is one.
    """

    ready: jax.Array
    exists: jax.Array
    at: Clock


def step(
    policy: Policy,
    lane: Lane,
    queue: Queue,
    s: State,
    coming: Coming | None = None,
) -> State:
    """One step of one engine.

    Args:
      policy: what an iteration holds.
      lane: the engine.
      queue: of the engine.
      s: before the step.
      coming: what may still come; None where the queue has all.
    """
    chunked, decode_only = policy == "chunked", policy in ("decode", "decode-first")
    # an iteration of prompts only has no number of its own
    behind = 0 if policy in ("chunked", "decode-first") else 1
    kind = lane.rate.dtype

    held, admission, known = s.held, s.admission, queue.length
    ready = jnp.ones((), bool) if coming is None else coming.ready
    again = jnp.zeros((), bool)

    def may_enter(head: Head, waited: Number, batch: Number, held: Number) -> jax.Array:
        here = (waited >= 0.0) & (head.index < known)
        if admission is not None:
            return here
        return here & (batch < lane.max_batch) & (held + head.tokens <= lane.capacity)

    seen = s.head.arrival
    if admission is not None:
        known, seen = admission.count, admission.next
    waited = s.clock.since(seen)
    entering = may_enter(s.head, waited, s.batch + s.opened.joins, s.held)
    if admission is not None:
        admission, tokens, again = _admitted(lane, queue, s, admission)
        held, known = held + tokens, admission.count
    piece = _piece(policy, lane, s, ready & entering, ready & s.begun)
    single = piece.finishes & (s.head.n_out == 1)
    if decode_only:
        single = jnp.zeros((), bool)
    opened = _with_piece(s, piece, single, made=0 if policy == "decode-first" else 1)
    if not decode_only:
        held = held + jnp.where(piece.taken & ~s.begun, s.head.tokens, 0)
    leaves = s.iteration + s.head.n_out - 1 - behind
    ring = s.ring.enter(leaves, s.head.tokens, piece.finishes & ~single)

    head = queue.fetch(s.head.index + piece.finishes.astype(jnp.int32))
    seen = head.arrival
    if admission is not None:
        seen = Clock(admission.here.whole[head.index], admission.here.part[head.index])
    waited = s.clock.since(seen)
    cached = lane.cached(head.n_in.astype(kind))
    more = piece.finishes & may_enter(head, waited, s.batch + opened.joins, held)
    if piece.left is not None:
        needed = _NO_TOKENS if chunked else head.n_in.astype(kind) - cached
        more = more & (piece.left >= needed)
    closes = ready & ~more & ~again

    comes = (head.index < known) & (waited < 0.0)
    until = jnp.where(comes, -waited, jnp.inf)
    if coming is not None:
        until = jnp.minimum(until, jnp.where(coming.exists, coming.at.since(s.clock), jnp.inf))
    ran = _iterations(policy, lane, s, opened, ring.until(s.iteration), until)
    runs = closes & ((ran.batch > 0) | ran.mixed)
    k = jnp.where(runs, ran.count, 0)
    clock = s.clock.after(jnp.where(runs, ran.takes, 0.0))
    idle = closes & ~runs & comes
    clock = seen.where(idle, clock)
    last = s.iteration + k - 1
    gone, gone_tokens, ring = ring.leave(last, k > 0)
    departs = (gone > 0).astype(jnp.int32)
    batch_after, context_after = ran.batch - gone, ran.context + ran.batch * k - gone_tokens
    if decode_only:
        batch_after = jnp.where(closes, batch_after, s.batch)
        context_after = jnp.where(closes, context_after, s.context)
    else:
        batch_after = batch_after + jnp.where(closes, opened.joins - opened.singles, 0)
        context_after = context_after + jnp.where(closes, opened.join_context, 0)

    if admission is not None:
        freed = jnp.where(runs | idle, gone_tokens, admission.freed)
        admission = admission._replace(freed=freed, next=seen)

    finished = s.head.arrival.where(piece.finishes, s.finished)
    out = closes & (opened.joins > 0)
    return State(
        iteration=s.iteration + k,
        clock=clock,
        head=head,
        done=jnp.where(piece.finishes, cached, s.done + piece.size),
        begun=(s.begun | piece.taken) & ~piece.finishes,
        batch=batch_after,
        context=context_after,
        gone=jnp.where(runs | idle, gone + opened.singles, s.gone),
        finished=finished,
        held=held - gone_tokens - jnp.where(closes, opened.single_tokens, 0),
        opened=jax.tree.map(lambda x: jnp.where(closes, jnp.zeros_like(x), x), opened),
        ring=ring,
        departures=s.departures + departs,
        log=_logged(s, head, finished, clock, out=out, number=s.iteration - behind, last=last),
        gaps=None if s.gaps is None else _gaps(policy, lane, s.gaps, s, opened, ran, k, runs),
        admission=admission,
    )


class _Ran(NamedTuple):
    """The iterations that start next, should they start.

    Attributes:
      batch: requests that decode.
      context: sum of their contexts, tokens.
      mixed: whether there are pieces of prompts.
      first: time of the first one.
      count: how many; 0 for one of prompts only, which has no number.
      takes: time of all.
    """

    batch: jax.Array
    context: jax.Array
    mixed: jax.Array
    first: jax.Array
    count: jax.Array
    takes: jax.Array


def _iterations(
    policy: Policy, lane: Lane, s: State, opened: Opened, most: Number, until: Number
) -> _Ran:
    """A spell of decode up to a departure or to a time from now, or one iteration with pieces."""
    kind, decode_only = lane.rate.dtype, policy in ("decode", "decode-first")
    batch, context = s.batch, s.context
    if decode_only:
        batch, context = batch + opened.joins, context + opened.join_context
    decoding, contexts = batch.astype(kind), context.astype(kind)
    work, mixed = decode_work(decoding, contexts), jnp.zeros((), bool)
    if not decode_only:
        mixed = opened.pieces > 0
    if policy == "chunked":
        work = work + opened.work()
    elif policy == "prompts-first":
        work = jax.tree.map(lambda a, b: jnp.where(mixed, a, b), opened.work(), work)
    first = lane.rate * lane.times.stage_time(work)
    spell = spell_of(lane.times, lane.rate, first, batch=decoding, context=contexts, most=most)
    k = iterations_until(spell, until)
    if policy == "decode-first" or (decode_only and s.gaps is not None):
        k = jnp.where(opened.joins > 0, 1, k)
    return _Ran(
        batch=batch,
        context=context,
        mixed=mixed,
        first=first,
        count=jnp.where(mixed, 1 if policy == "chunked" else 0, k),
        takes=jnp.where(mixed, first, duration(spell, k.astype(kind))),
    )


def _gaps(
    policy: Policy,
    lane: Lane,
    gaps: GapCount,
    s: State,
    opened: Opened,
    ran: _Ran,
    k: jax.Array,
    runs: jax.Array,
) -> GapCount:
    """Counts the times between tokens of k iterations."""
    if policy == "prompts-first":
        stalled = gaps.stalled(ran.first, opened.joins - opened.singles)
        gaps = jax.tree.map(lambda a, b: jnp.where(runs & ran.mixed, a, b), stalled, gaps)
    return gaps.after(
        lane.rate,
        s.clock.whole,
        decoding=jnp.where(k > 0, s.batch, 0),
        first=ran.first,
        more=jnp.maximum(k - 1, 0),
        rest=ran.takes - ran.first,
    )


def _logged(
    s: State,
    head: Head,
    finished: Clock,
    clock: Clock,
    *,
    out: jax.Array,
    number: jax.Array,
    last: jax.Array,
) -> Log:
    """Notes first tokens, if any are out, and departures.

    An entry that means nothing is overwritten by the next one of its place, or marked as such.
    """
    place = head.index - out.astype(jnp.int32)
    return Log(
        first_iteration=put(s.log.first_iteration, place, jnp.where(out, number, NEVER)),
        first_lag=put(s.log.first_lag, place, clock.since(finished)),
        last_iteration=put(s.log.last_iteration, s.departures, last),
        last=Clock(*(put(a, s.departures, b) for a, b in zip(s.log.last, clock, strict=True))),
    )


def _admitted(
    lane: Lane, queue: Queue, s: State, a: Admission
) -> tuple[Admission, jax.Array, jax.Array]:
    """Gives the next request in the queue room, if there is any.

    It has got it when it came, or, if those who have just left had to make it, when they did.

    Returns:
      the admitted ones, the tokens that the new one holds, and whether it was admitted now, so
      that others may be as well before an iteration starts.
    """
    head = queue.fetch(a.count)
    requests = s.batch + s.opened.joins + a.count - s.head.index

    def room(requests: Number, held: Number) -> jax.Array:
        return (requests < lane.max_batch) & (held + head.tokens <= lane.capacity)

    admits = (a.count < queue.length) & room(requests, s.held)
    before = room(requests + s.gone, s.held + a.freed)
    comes = head.arrival.since(s.clock) >= 0.0
    begins = head.arrival.where(comes | before, s.clock).later(a.latest)
    link, handover = a.link, queue.handover(a.count)
    if link is None:
        here = begins.after(handover)
    else:
        pulled = begins.later(link).after(handover)
        here, link = pulled.after(lane.overhead), pulled.where(admits, link)
    admitted = Admission(
        count=a.count + admits.astype(jnp.int32),
        latest=begins.where(admits, a.latest),
        freed=a.freed,
        link=link,
        here=Clock(*(put(x, a.count, y) for x, y in zip(a.here, here, strict=True))),
        next=a.next,
    )
    now = admits & (begins.since(s.clock) <= 0.0)
    return admitted, jnp.where(admits, head.tokens, 0), now


def _piece(policy: Policy, lane: Lane, s: State, entering: jax.Array, goes_on: jax.Array) -> _Piece:
    """What the open iteration takes of the head's prompt."""
    rest = s.head.n_in.astype(lane.rate.dtype) - s.done
    if policy == "chunked":
        left = lane.tokens - s.batch.astype(rest.dtype) - s.opened.new
        taken = (left > _NO_TOKENS) & (goes_on | entering)
        size = jnp.where(taken, jnp.minimum(rest, left), 0.0)
        return _Piece(taken, taken & (rest <= left + _NO_TOKENS), size, left - size)
    if policy != "prompts-first":
        return _Piece(entering, entering, jnp.where(entering, rest, 0.0), None)
    taken = entering & ((s.opened.pieces == 0) | (s.opened.new + rest <= lane.tokens))
    size = jnp.where(taken, rest, 0.0)
    return _Piece(taken, taken, size, lane.tokens - s.opened.new - size)


def _with_piece(s: State, piece: _Piece, single: jax.Array, *, made: int) -> Opened:
    """The open iteration with a piece of the head, which enters decode with `made` tokens."""
    o, several = s.opened, piece.finishes & ~single
    return Opened(
        joins=o.joins + piece.finishes.astype(jnp.int32),
        join_context=o.join_context + jnp.where(several, s.head.n_in + made, 0),
        singles=o.singles + single.astype(jnp.int32),
        single_tokens=o.single_tokens + jnp.where(single, s.head.tokens, 0),
        pieces=o.pieces + piece.taken.astype(jnp.int32),
        new=o.new + piece.size,
        pairs=o.pairs + piece.size * (s.done + 0.5 * piece.size),
        reread=o.reread + jnp.where(piece.taken, s.done, 0.0),
    )
