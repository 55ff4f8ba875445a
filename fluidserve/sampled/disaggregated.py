"""Disaggregated deployments on a sampled trace: prefill, link and decode one after the other.

Each request passes them as in the event simulator, except that KV that waits in prefill memory
never holds prefill up, and that, with several decode instances, a pull that begins late because
there was no room finds the link as it was when prefill ended.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from fluidserve._typing import Leaf, Number
from fluidserve.sampled.aggregated import MOST_ENGINES, power_of_two, refuse, whole
from fluidserve.sampled.engine import run
from fluidserve.sampled.gaps import BINS, bin_of
from fluidserve.sampled.latencies import Served, latencies, pool_latencies
from fluidserve.sampled.pool import run_pool
from fluidserve.sampled.prefill import link_lags, prefill_lags
from fluidserve.sampled.state import Clock, Lane
from fluidserve.sampled.step import Policy
from fluidserve.sampled.trace import Rows, Trace, judged
from fluidserve.timing.instance import System

MOST_PREFILL = 64
"""Most prefill instances."""


def check_disaggregated(system: System) -> None:
    """Refuses what the recursions and the loop do not have.

    Raises:
      InputError: pipeline stages in decode, many instances, windows or state in the KV, prefill of
        several prompts together, or the rule 'jsq' with several prefill instances.
    """
    refuse("decode.pp", np.asarray(system.decode.pp) != 1.0, "one pipeline stage")
    many = np.asarray(system.n_decode) > MOST_ENGINES
    refuse("n_decode", many, f"up to {MOST_ENGINES} instances")
    many = np.asarray(system.n_prefill) > MOST_PREFILL
    refuse("n_prefill", many, f"up to {MOST_PREFILL} instances")
    refuse("kv", system.kv is not None, "models whose layers all keep every token")
    refuse("prefill_batch", system.prefill_batch != 1, "one prompt at a time")
    lines = (system.dispatch == "jsq") & (np.asarray(system.n_prefill) > 1.0)
    refuse("dispatch", lines, "another rule than jsq")


@dataclasses.dataclass(frozen=True)
class DisaggregatedProgram:
    """What is compiled in.

    Attributes:
      policy: of the decode engines.
      places: of their rings.
      engines: most of a deployment.
      prefills: most prefill instances.
      stages: most pipeline stages of one.
      decoded: requests of the trace that reach decode.
      gaps: whether times between tokens are counted.
    """

    policy: Policy
    places: int
    engines: int
    prefills: int
    stages: int
    decoded: int
    gaps: bool

    def serve(
        self, system: System, rate: jax.Array, rows: Rows, longest: Leaf
    ) -> tuple[Served, jax.Array | None]:
        """Latencies of a trace on every deployment; see `AggregatedProgram.serve`."""
        prefilled, order, sent, handover = jax.vmap(self._before_decode, (0, 0, None))(
            system, rate, rows
        )
        n_in, n_out = rows.n_in[order], rows.n_out[order]
        decode_rows = Rows(*sent, n_in, n_out, rows.choice[order], handover)
        lanes = Lane(
            times=system.decode.times,
            rate=rate,
            tokens=0.0 * rate,
            max_batch=whole(system.max_batch),
            capacity=whole(system.decode.kv_capacity, longest),
            overhead=rate * system.handover_overhead if self.engines == 1 else None,
        )
        if self.engines == 1:
            log, gaps = run(self.policy, self.places, self.gaps, lanes, decode_rows)
            served = jax.vmap(latencies)(rate, decode_rows, log)
        else:
            replicas = system.n_decode.astype(jnp.int32)
            to = self._decode_of(system, decode_rows.choice[:, :-1])
            log, gaps = run_pool(
                self.policy,
                self.places,
                self.gaps,
                self.engines,
                lanes,
                replicas,
                decode_rows,
                to,
            )
            served = jax.vmap(pool_latencies)(rate, decode_rows, log)
        if gaps is not None and self.policy == "decode":
            requests = rows.n_in.shape[0] - 1
            gaps = gaps + jax.vmap(functools.partial(_second_tokens, requests))(order, served)
        return jax.vmap(self._joined, (0, None, 0, 0, 0))(
            rate, rows, prefilled, order, served
        ), gaps

    def _before_decode(
        self, system: System, rate: jax.Array, rows: Rows
    ) -> tuple[jax.Array, jax.Array, Clock, jax.Array]:
        """Prefill and link of one deployment.

        Returns:
          time from arrival to the end of prefill, in gaps, (requests,); then, in the order in
          which prefill ends and with the last one repeated, which request it is, when its prefill
          ends, and its `Rows.handover`, (decoded + 1,).
        """
        n_in = rows.n_in[:-1].astype(rate.dtype)
        arrival = Clock(rows.whole[:-1], rows.part[:-1])
        to = None
        if system.dispatch == "round-robin":
            to = (jnp.arange(len(n_in)) % system.n_prefill).astype(jnp.int32)
        elif system.dispatch == "random":
            to = jnp.floor(rows.choice[:-1] * system.n_prefill).astype(jnp.int32)
        prefilled = prefill_lags(
            arrival,
            rate * system.prefill.prefill_time(n_in, system.prefix_hit),
            to,
            instances=system.n_prefill,
            stages=system.prefill.pp,
            most_instances=self.prefills,
            most_stages=self.stages,
        )
        ends = Clock(arrival.whole, arrival.part).after(prefilled)
        when = ends.whole.astype(rate.dtype) + ends.part
        if self.policy == "decode":
            when = jnp.where(rows.n_out[:-1] > 1, when, jnp.inf)
        order = jnp.argsort(when)[: self.decoded]
        sent = Clock(ends.whole[order], ends.part[order])
        pulled = rate * system.kv_bytes_per_token / system.link_bandwidth * rows.n_in[order]
        if self.engines > 1:
            pulled = link_lags(sent, pulled) + rate * system.handover_overhead
        order, whole_, part, pulled = (jnp.append(x, x[-1]) for x in (order, *sent, pulled))
        return prefilled, order, Clock(whole_, part), pulled

    def _decode_of(self, system: System, choice: jax.Array) -> jax.Array | None:
        """The decode instance of each request, in the order of their coming; None: by load."""
        if system.dispatch == "round-robin":
            turns = jnp.arange(self.decoded) % system.n_decode[:, None]
            return turns.astype(jnp.int32)
        if system.dispatch == "random":  # of one number, the part that prefill has not used
            rest = choice * system.n_prefill[:, None] % 1.0
            return jnp.floor(rest * system.n_decode[:, None]).astype(jnp.int32)
        return None

    def _joined(
        self, rate: Number, rows: Rows, prefilled: jax.Array, order: jax.Array, served: Served
    ) -> Served:
        """Latencies from arrival, in the order of arrival, of one deployment."""
        order, first = order[:-1], prefilled / rate
        e2e = first.at[order].add(served.e2e)
        if self.policy == "decode-first":
            return Served(
                ttft=first.at[order].add(served.ttft),
                tpot=jnp.zeros_like(first).at[order].set(served.tpot),
                e2e=e2e,
            )
        gaps = jnp.maximum(rows.n_out[:-1] - 1, 1).astype(first.dtype)
        return Served(ttft=first, tpot=(e2e - first) / gaps, e2e=e2e)


def _second_tokens(requests: int, order: jax.Array, served: Served) -> jax.Array:
    """Tokens by their gap, of the second ones of all judged requests: behind the hand-over."""
    window = judged(requests)
    counts = (order[:-1] >= window.start) & (order[:-1] < window.stop)
    tokens = jnp.zeros(BINS, served.ttft.dtype)
    return tokens.at[bin_of(served.ttft)].add(counts.astype(tokens.dtype))


def disaggregated_program(
    system: System, trace: Trace, places: int, *, gaps: bool
) -> DisaggregatedProgram:
    """The program for a batch of deployments.

    Raises:
      InputError: see `check_disaggregated`.
    """
    check_disaggregated(system)
    several = int(np.sum(trace.n_out > 1))
    from_prefill = system.first_token == "prefill"
    return DisaggregatedProgram(
        policy="decode" if from_prefill else "decode-first",
        places=places,
        engines=power_of_two(system.n_decode),
        prefills=power_of_two(system.n_prefill),
        stages=power_of_two(system.prefill.pp),
        decoded=several if from_prefill else len(trace),
        gaps=gaps,
    )
