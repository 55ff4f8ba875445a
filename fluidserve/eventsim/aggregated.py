"""Event simulation of instances that do both phases, request by request, iteration by iteration.

Arrivals join the queue of an instance and stay there. What an iteration of an instance holds is
up to its scheduler (`continuous`, `static`). An instance has as many lanes as pipeline stages,
each with a batch of its own; an iteration of a lane passes the stages in order, and the lane that
starts one takes from the queue what it may.

Events at equal times are handled in this order: end of an iteration, arrival, start of a lane that
had an iteration before, start of idle lanes. So an iteration sees the room that is free and the
requests that are there at the moment when it starts.

Ignores: KV that prompts share in memory, paging granularity (KV is counted in tokens), swapping KV
to the host, scheduling time beyond what the time model holds.
"""

from heapq import heappop

from fluidserve.eventsim.checks import check_counts, check_limits, check_room, plain
from fluidserve.eventsim.continuous import ChunkedPrefill, PrefillFirst
from fluidserve.eventsim.records import Log, Records, Utilisation
from fluidserve.eventsim.replicas import Iteration
from fluidserve.eventsim.scheduler import ITERATION_END, LANE_START, WAKE, Scheduler
from fluidserve.eventsim.sources import Source
from fluidserve.timing.instance import AggregatedSystem


def scheduler_of(system: AggregatedSystem) -> type[Scheduler]:
    """The scheduler that a system asks for."""
    return PrefillFirst if system.token_budget is None else ChunkedPrefill


def serve(
    system: AggregatedSystem,
    log: Log,
    source: Source,
    *,
    record_gaps: bool,
    seed: int,
    scheduler: type[Scheduler] | None = None,
    trace: list[Iteration] | None = None,
) -> Records:
    """Handles events in time order until every request of a log is served.

    Args:
      system: the deployment; one, not a batch.
      log: the requests.
      source: who sends them.
      record_gaps: also keep every time between two tokens.
      seed: of random dispatch.
      scheduler: instead of the one that the system asks for.
      trace: a list that gets every iteration.

    Raises:
      InputError: a system that cannot be simulated, or a request that no instance has room for.
    """
    system = _checked(system, max(map(sum, zip(log.n_in, log.n_out, strict=True))))
    chosen = scheduler or scheduler_of(system)
    pool = chosen(system, log, source.answered, record_gaps=record_gaps, seed=seed, trace=trace)
    heap = log.heap
    source.begin()
    while heap:
        now, rank, item = heappop(heap)
        if rank == ITERATION_END:
            pool.iterate(item, now)
        elif rank == LANE_START:
            pool.begin(item, now)
        elif rank == WAKE:
            pool.wake(item, now)
        else:
            for request in source.arrive(now):
                pool.arrive(request, now)
    return log.records(_utilisation(system, log, pool), pool.gaps())


def _utilisation(system: AggregatedSystem, log: Log, pool: Scheduler) -> Utilisation:
    """Averages over the run."""
    horizon = max(log.last_token) - log.arrival[0]
    times = system.replicas * horizon
    decoding = sum(log.last_token) - sum(log.first_token)
    return Utilisation(
        horizon=float(horizon),
        prefill=float(pool.busy_prompts / (system.instance.pp * times)),
        link=0.0,
        decode=float(pool.busy_decode / (system.instance.pp * times)),
        decode_batch=float(decoding / times),
        prefill_kv=0.0,
        decode_kv=float(pool.kv_time / (system.instance.kv_capacity * times)),
    )


def _checked(system: AggregatedSystem, longest: int) -> AggregatedSystem:
    """The system in plain numbers, or an `InputError`: wrong ones, or a request without room."""
    system = plain(system)
    check_counts({"replicas": system.replicas, "instance.pp": system.instance.pp})
    limits = ("max_batch", "prefill_tokens", "token_budget")
    check_limits({name: getattr(system, name) for name in limits})
    check_room(system.instance, longest, "instance")
    return system
