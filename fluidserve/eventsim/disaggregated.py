"""Event simulation of a disaggregated deployment, request by request, iteration by iteration.

Arrivals join a prefill queue (`prefill`); at the end of prefill a request goes to the queue of
a decode instance (`decode`), which pulls its KV over the one link when it admits it. Until the
pull has ended the KV stays in the prefill instance, so a full decode pool holds prefill back.

Events at equal times are handled in this order: end of prefill, end of a pull, end of an
iteration, start of a lane, arrival, first prefill stage free.

Ignores: preemption, KV that prompts share in memory, paging granularity (KV is counted in tokens),
transfers that overlap with prefill, scheduling time beyond what the time model holds.
"""

from heapq import heappop, heappush

import numpy as np

from fluidserve.errors import InputError
from fluidserve.eventsim.checks import check_counts, check_limits, check_room, plain
from fluidserve.eventsim.decode import ITERATION_END, LANE_START, DecodePool
from fluidserve.eventsim.dispatch import stream
from fluidserve.eventsim.prefill import PREFILL_END, STAGE_FREE, PrefillPool
from fluidserve.eventsim.records import Gaps, Log, Records, Utilisation, collect_gaps
from fluidserve.eventsim.sources import Source
from fluidserve.timing.instance import System
from fluidserve.timing.kv import tokens_held

_PULL_END = 1


def serve(system: System, log: Log, source: Source, *, record_gaps: bool, seed: int) -> Records:
    """Handles events in time order until every request of a log is served.

    Args:
      system: the deployment; one, not a batch.
      log: the requests.
      source: who sends them.
      record_gaps: also keep every time between two tokens.
      seed: of random dispatch.

    Raises:
      InputError: a system that cannot be simulated, or a request that no instance has room for.
    """
    system = _checked(system, np.array(log.n_in), np.array(log.n_out))
    return _Simulation(system, log, source, record_gaps, seed).run()


class _Simulation:
    """One run: the two pools, the link between them, and the loop over events."""

    def __init__(self, system: System, log: Log, source: Source, record_gaps: bool, seed: int):
        self._system = system
        self._log = log
        self._source = source
        self._record_gaps = record_gaps
        self._from_prefill = system.first_token == "prefill"
        self._link_free = 0.0
        self._link_busy = 0.0
        rng = stream(seed)
        self._prefill = PrefillPool(
            log,
            system.prefill,
            replicas=int(system.n_prefill),
            batch=system.prefill_batch,
            tokens=system.prefill_tokens,
            dispatch=system.dispatch,
            rng=rng,
            prefix_hit=system.prefix_hit,
        )
        self._decode = DecodePool(
            log,
            system.decode,
            replicas=int(system.n_decode),
            max_batch=float(system.max_batch),
            first_from_prefill=self._from_prefill,
            pull=self._pull,
            answered=source.answered,
            record_gaps=record_gaps,
            dispatch=system.dispatch,
            rng=rng,
        )

    def run(self) -> Records:
        """Handles events in time order until none is left."""
        log, prefill, decode, source = self._log, self._prefill, self._decode, self._source
        heap = log.heap
        source.begin()
        while heap:
            now, rank, item = heappop(heap)
            if rank == ITERATION_END:
                decode.iterate(item, now)
            elif rank == LANE_START:
                decode.begin(item, now)
            elif rank == PREFILL_END:
                self._prefill_end(item, now)
            elif rank == _PULL_END:
                prefill.release(item)
                decode.join(item, now)
                prefill.start(now)
            elif rank == STAGE_FREE:
                prefill.start(now)
            else:
                for request in source.arrive(now):
                    prefill.arrive(request)
                prefill.start(now)
        return log.records(self._utilisation(), self._gaps())

    def _prefill_end(self, instance: int, now: float) -> None:
        """Sends a batch on; a request whose only token has just left is done."""
        log = self._log
        for request in self._prefill.finish(instance):
            if self._from_prefill:
                log.first_token[request] = now
                if log.n_out[request] == 1:
                    log.kv_start[request] = log.kv_end[request] = now
                    log.decode_start[request] = log.first_step[request] = now
                    log.last_token[request] = now
                    self._prefill.release(request)
                    self._source.answered(now)
                    continue
            self._decode.dispatch(request, now)
        self._prefill.start(now)

    def _pull(self, request: int, now: float) -> None:
        """Queues the KV of an admitted request on the link, then adds the fixed overhead."""
        log, system = self._log, self._system
        held = tokens_held(system.kv, log.n_in[request])
        service = held * system.kv_bytes_per_token / system.link_bandwidth
        self._link_free = max(self._link_free, now) + service
        self._link_busy += service
        end = self._link_free + system.handover_overhead
        log.kv_start[request], log.kv_end[request] = now, float(end)
        heappush(log.heap, (float(end), _PULL_END, request))

    def _utilisation(self) -> Utilisation:
        """Averages over the run."""
        log, system = self._log, self._system
        horizon = max(log.last_token) - log.arrival[0]
        prefill, decode = system.prefill, system.decode
        decoding = prefill_kv = decode_kv = 0.0
        for r in range(len(log.arrival)):
            decoding += log.last_token[r] - log.decode_start[r]
            held = tokens_held(prefill.kv, log.n_in[r])
            prefill_kv += held * (log.kv_end[r] - log.prefill_start[r])
            if log.decode_instance[r] >= 0:
                held = tokens_held(decode.kv, log.n_in[r] + log.n_out[r])
                decode_kv += held * (log.last_token[r] - log.kv_start[r])
        return Utilisation(
            horizon=float(horizon),
            prefill=float(self._prefill.busy / (system.n_prefill * prefill.pp * horizon)),
            link=float(self._link_busy / horizon),
            decode=float(self._decode.busy / (system.n_decode * decode.pp * horizon)),
            decode_batch=float(decoding / (system.n_decode * horizon)),
            prefill_kv=float(prefill_kv / (system.n_prefill * prefill.kv_capacity * horizon)),
            decode_kv=float(decode_kv / (system.n_decode * decode.kv_capacity * horizon)),
        )

    def _gaps(self) -> Gaps | None:
        """Times between tokens, if they were asked for."""
        if not self._record_gaps:
            return None
        decode = self._decode
        return collect_gaps(
            self._log, decode.iteration_ends, decode.joined, from_prefill=self._from_prefill
        )


def _checked(system: System, n_in: np.ndarray, n_out: np.ndarray) -> System:
    """The system in plain numbers, or an `InputError`: wrong ones, or a request without room."""
    system = plain(system)
    check_counts(
        {
            "n_prefill": system.n_prefill,
            "n_decode": system.n_decode,
            "prefill.pp": system.prefill.pp,
            "decode.pp": system.decode.pp,
            "prefill_batch": system.prefill_batch,
        }
    )
    check_limits({"max_batch": system.max_batch})
    if not system.link_bandwidth > 0:
        raise InputError(f"system.link_bandwidth = {system.link_bandwidth} must be above zero")
    handed_over = n_out > (1 if system.first_token == "prefill" else 0)
    check_room(system.prefill, n_in.max(), "prefill")
    check_room(system.decode, (n_in + n_out)[handed_over].max(initial=0), "decode")
    return system
