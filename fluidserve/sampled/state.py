"""What an engine is between two steps of the loop; every leaf belongs to one lane."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf, Number
from fluidserve.sampled.gaps import GapCount, no_gaps
from fluidserve.sampled.trace import Rows
from fluidserve.timing.model import AbstractTimeModel, Work

NEVER = 1 << 30
"""Index of an iteration that never comes."""

WORD = 32
"""Bits of a word of the ring's bitmap."""


@pytree
class Lane:
    """One engine at one rate.

    Attributes:
      times: time model.
      rate: arrival rate, 1/s.
      tokens: token budget (chunked), or most prompt tokens of an iteration (prompts first).
      max_batch: most requests held at once, a whole number as int32.
      capacity: tokens of KV that fit, a whole number as int32; at least those of each request.
      prefix_hit: share of every prompt that need not be computed; None for none.
      overhead: of a hand-over, behind the link, in gaps; None where hand-overs have been timed.
    """

    times: AbstractTimeModel
    rate: Leaf
    tokens: Leaf
    max_batch: Leaf
    capacity: Leaf
    prefix_hit: Leaf | None = None
    overhead: Leaf | None = None

    def cached(self, n_in: Number) -> Number:
        """Prompt tokens that are not computed, as `fluidserve.timing.model.prefill_work` has it."""
        if self.prefix_hit is None:
            return jnp.zeros_like(self.rate)
        return jnp.minimum(self.prefix_hit * n_in, n_in - 1.0)


class Clock(NamedTuple):
    """A time in mean gaps between arrivals, whole part and the rest."""

    whole: jax.Array
    part: jax.Array

    def since(self, other: "Clock") -> jax.Array:
        """Time from another one to this one."""
        return (self.whole - other.whole).astype(self.part.dtype) + (self.part - other.part)

    def after(self, time: Number) -> "Clock":
        """Some time later."""
        part = self.part + time
        carry = jnp.floor(part)
        return Clock(self.whole + carry.astype(jnp.int32), part - carry)

    def later(self, other: "Clock") -> "Clock":
        """The later one of two times."""
        return self.where(self.since(other) >= 0.0, other)

    def where(self, chosen: Number, other: "Clock") -> "Clock":
        """This time where chosen, else the other."""
        return Clock(*(jnp.where(chosen, a, b) for a, b in zip(self, other, strict=True)))


class Head(NamedTuple):
    """The first request whose prompt is not finished; the last row of the trace when there is none.

    Attributes:
      index: in the trace.
      arrival: when it comes.
      n_in: prompt tokens.
      n_out: output tokens.
    """

    index: jax.Array
    arrival: Clock
    n_in: jax.Array
    n_out: jax.Array

    @property
    def tokens(self) -> jax.Array:
        """All that it will ever have."""
        return self.n_in + self.n_out


class Opened(NamedTuple):
    """What has been put into the iteration that starts next; tokens of prompts are floats.

    Attributes:
      joins: prompts finished.
      join_context: contexts with which they decode.
      singles: those that leave with their first token.
      single_tokens: tokens that these hold.
      pieces: of prompts.
      new: tokens of the pieces.
      pairs: attended by them.
      reread: tokens computed earlier that they read.
    """

    joins: jax.Array
    join_context: jax.Array
    singles: jax.Array
    single_tokens: jax.Array
    pieces: jax.Array
    new: jax.Array
    pairs: jax.Array
    reread: jax.Array

    def work(self) -> Work:
        """The pieces as one pass."""
        count = self.pieces.astype(self.new.dtype)
        return Work(
            new=self.new, attended=self.pairs, kv_read=self.reread, sequences=count, prompts=count
        )


class Ring(NamedTuple):
    """Who leaves at the end of which iteration; iteration i has the place i modulo the size.

    Attributes:
      leaving: requests.
      freed: tokens that they hold.
      used: bitmap of the places that mean something.
    """

    leaving: jax.Array
    freed: jax.Array
    used: jax.Array

    def enter(self, iteration: Number, tokens: Number, real: Number) -> "Ring":
        """Adds a request that holds so many tokens, if it is real."""
        place, word, bit = self._place(iteration)
        there = self.used[word]
        filled = (there & bit) != 0
        leaving, freed = self.leaving[place], self.freed[place]
        count = jnp.where(real, jnp.where(filled, leaving, 0) + 1, leaving)
        sum_ = jnp.where(real, jnp.where(filled, freed, 0) + tokens, freed)
        return Ring(
            leaving=put(self.leaving, place, count),
            freed=put(self.freed, place, sum_),
            used=put(self.used, word, jnp.where(real, there | bit, there)),
        )

    def until(self, iteration: Number) -> jax.Array:
        """Iterations from this one to the next departure, or to the end of the word."""
        inside = (iteration & (WORD - 1)).astype(jnp.uint32)
        ahead = self.used[self._place(iteration)[1]] >> inside
        lowest = ahead & (~ahead + jnp.uint32(1))
        found = WORD - jax.lax.clz(lowest).astype(jnp.int32)
        return jnp.where(ahead != 0, found, WORD - inside.astype(jnp.int32))

    def leave(self, iteration: Number, real: Number) -> tuple[jax.Array, jax.Array, "Ring"]:
        """Takes out who leaves: requests, their tokens, and the ring without them."""
        place, word, bit = self._place(iteration)
        there = self.used[word]
        real = real & ((there & bit) != 0)
        used = put(self.used, word, jnp.where(real, there & ~bit, there))
        requests = jnp.where(real, self.leaving[place], 0)
        tokens = jnp.where(real, self.freed[place], 0)
        return requests, tokens, self._replace(used=used)

    def _place(self, iteration: Number) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Place, word of the bitmap, and bit of the word."""
        place = iteration & (self.leaving.shape[0] - 1)
        bit = jnp.uint32(1) << (iteration & (WORD - 1)).astype(jnp.uint32)
        return place, place // WORD, bit


class Admission(NamedTuple):
    """Requests that have room, in order, whose KV is on its way or there.

    Attributes:
      count: how many there have been.
      latest: when the last of them got it.
      freed: tokens that those held who left when the clock was last moved.
      link: when the link is free; None where hand-overs have been timed.
      here: when the KV of each is there, (requests + 1,).
      next: when that of the head of the queue is; kept apart, as reading an array before it changes
        would copy it.
    """

    count: jax.Array
    latest: Clock
    freed: jax.Array
    link: Clock | None
    here: Clock
    next: Clock


class Log(NamedTuple):
    """What a run leaves behind; see `fluidserve.sampled.latencies` for how it is read.

    Attributes:
      first_iteration: at the last of the prompts that an iteration finishes, the index of the
        iteration with their first tokens; `NEVER` elsewhere, (requests + 1,).
      first_lag: there, its end after the arrival of that request, in mean gaps.
      last_iteration: iterations at whose end requests leave, in order, then `NEVER`.
      last: their ends.
    """

    first_iteration: jax.Array
    first_lag: jax.Array
    last_iteration: jax.Array
    last: Clock


class State(NamedTuple):
    """An engine between two steps.

    Attributes:
      iteration: decode iterations so far; when chunked, all iterations.
      clock: when the last one ended.
      head: of the queue.
      done: its prompt tokens that need no computing any more.
      begun: whether it is admitted.
      batch: decoding requests.
      context: sum of their contexts, tokens.
      held: tokens of KV reserved.
      gone: requests that left when the clock was last moved.
      finished: arrival of the last request whose prompt is finished.
      opened: of the next iteration.
      ring: departures.
      departures: iterations at whose end requests have left.
      log: of the run.
      gaps: times between tokens; None where nobody asks for them.
      admission: of requests with prompts computed elsewhere; None where there are no such.
    """

    iteration: jax.Array
    clock: Clock
    head: Head
    done: jax.Array
    begun: jax.Array
    batch: jax.Array
    context: jax.Array
    held: jax.Array
    gone: jax.Array
    finished: Clock
    opened: Opened
    ring: Ring
    departures: jax.Array
    log: Log
    gaps: GapCount | None
    admission: Admission | None


def put(array: jax.Array, at: Number, value: Number) -> jax.Array:
    """The array with one element replaced."""
    return array.at[at].set(value, mode="promise_in_bounds")


def head_at(rows: Rows, index: Number, request: Number | None = None) -> Head:
    """A request of a trace as the head of a queue at some index; None: at its own."""
    row = index if request is None else request
    arrival = Clock(rows.whole[row], rows.part[row])
    return Head(index=index, arrival=arrival, n_in=rows.n_in[row], n_out=rows.n_out[row])


def idle_engine(places: int, count_gaps: bool, lane: Lane, rows: Rows) -> State:
    """An engine without requests at time 0, its ring of so many places."""
    entries = rows.n_in.shape[-1]
    count, zero = jnp.zeros((), jnp.int32), jnp.zeros_like(lane.rate)
    start, head = Clock(count, zero), head_at(rows, count)

    def filled(value: int, like: jax.Array) -> jax.Array:
        return jnp.full(entries, value, like.dtype)

    link = None if lane.overhead is None else start
    there = Clock(filled(0, count), filled(0, zero))
    return State(
        iteration=count,
        clock=start,
        head=head,
        done=lane.cached(head.n_in.astype(zero.dtype)),
        begun=jnp.zeros((), bool),
        batch=count,
        context=count,
        held=count,
        gone=count,
        finished=start,
        opened=Opened(count, count, count, count, count, zero, zero, zero),
        ring=Ring(
            leaving=jnp.zeros(places, jnp.int32),
            freed=jnp.zeros(places, jnp.int32),
            used=jnp.zeros(places // WORD, jnp.uint32),
        ),
        departures=count,
        log=Log(
            first_iteration=filled(NEVER, count),
            first_lag=filled(0, zero),
            last_iteration=filled(NEVER, count),
            last=there,
        ),
        gaps=no_gaps(rows) if count_gaps else None,
        admission=None
        if rows.handover is None
        else Admission(count, start, count, link, there, start),
    )
