"""Throughput where all requests are there from the start, as in offline inference."""

import numpy as np

from fluidserve.errors import InputError
from fluidserve.eventsim.arrivals import streams
from fluidserve.eventsim.runs import run
from fluidserve.specs.workload import Workload, draw_lengths
from fluidserve.timing.instance import AggregatedSystem, System

FEWEST = 100
_START, _END = 0.2, 0.8


def offline_throughput(
    system: System | AggregatedSystem, workload: Workload, *, requests: int, seed: int
) -> float:
    """Requests finished per second between the first and the last fifth of those that finish.

    At the start instances fill up and at the end they run empty; with few requests for each slot,
    these take more than a fifth.

    Args:
      system: the deployment.
      workload: lengths; arrivals mean nothing here.
      requests: all there at once.
      seed: of the lengths and of dispatch.

    Raises:
      InputError: fewer than `FEWEST` requests, or what `run` raises.
    """
    if requests < FEWEST:
        raise InputError(f"requests = {requests} are too few; take at least {FEWEST}")
    _, for_lengths = streams(seed)
    n_in, n_out = draw_lengths(workload.lengths, requests, for_lengths, stratify=True)
    records = run(system, np.zeros(requests), n_in, n_out, seed=seed)
    ends = np.sort(records.last_token)
    first, last = round(_START * requests), round(_END * requests)
    return float((last - first) / (ends[last] - ends[first]))
