"""The traffic that inputs ask for: where it comes from, what is refused, which rate is planned."""

import dataclasses
import math

import numpy as np

from fluidserve.errors import InputError
from fluidserve.io.prefix import prefix_reuse
from fluidserve.io.schema import Inputs
from fluidserve.io.trace import Trace, trace_workload
from fluidserve.io.traces import read_trace
from fluidserve.specs.applications import find_application, synthetic_workload
from fluidserve.specs.lengths import accepted
from fluidserve.specs.workload import Workload, busiest, thinned

_BUSY_SPELLS = 2.0


def traffic_of(inputs: Inputs) -> tuple[Workload, list[str]]:
    """The workload that inputs ask for, and notes on what was decided.

    Raises:
      InputError: a name that is not known, a file that cannot be read, a rate that the traffic
        does not have, or no request that is short enough.
    """
    if inputs.trace is not None:
        workload, notes = _recorded(inputs, inputs.trace)
    else:
        workload, notes = _described(inputs), []
        if inputs.max_model_len is not None:
            lengths, refused = accepted(workload.lengths, inputs.max_model_len)
            workload = thinned(workload, lengths, refused)
    workload = dataclasses.replace(workload, prefix_hit=inputs.prefix_hit or 0.0)
    if inputs.rate_of is not None:
        workload = _planned(inputs, workload)
    if inputs.arrival_cv is not None:
        # a pattern that was asked for replaces the recorded one
        workload = dataclasses.replace(
            workload, arrival_scv=inputs.arrival_cv**2, dispersion=1.0, arrivals=np.empty(0)
        )
    if inputs.concurrency is not None:
        workload = dataclasses.replace(
            workload,
            arrival_scv=1.0,
            dispersion=1.0,
            arrivals=np.empty(0),
            concurrency=inputs.concurrency,
        )
    return workload, notes


def asked_rate(inputs: Inputs, workload: Workload) -> float | None:
    """The rate to be served, 1/s: ``--rate``, or that of the traffic which ``--rate-of`` names."""
    return inputs.rate if inputs.rate_of is None else float(workload.rate)


def _described(inputs: Inputs) -> Workload:
    if inputs.app is not None:
        return find_application(inputs.app)
    assert inputs.isl is not None
    assert inputs.osl is not None
    return synthetic_workload(inputs.isl, inputs.osl, inputs.isl_cv or 0.0, inputs.osl_cv or 0.0)


def _recorded(inputs: Inputs, path: str) -> tuple[Workload, list[str]]:
    trace = read_trace(path)
    notes = [f"{trace.name}: {note}" for note in trace.notes]
    total, most = len(trace), inputs.max_model_len
    if most is not None:
        fits = trace.n_in + trace.n_out <= most
        if not fits.any():
            raise InputError(f"--max-model-len {most}: every request of {trace.name} is longer")
        if not fits.all():
            count = total - np.count_nonzero(fits)
            notes.append(
                f"{trace.name}: {count:,} of {total:,} requests ({count / total:.2%}) are longer "
                f"than {most:,} tokens, prompt and output together, and are refused"
            )
            trace = trace.select(fits)
    workload = dataclasses.replace(
        trace_workload(trace),
        refused=1.0 - len(trace) / total,
        prefix_bound=_reuse(trace, notes),
    )
    spells = float(workload.dispersion)
    steady = inputs.arrival_cv is not None or inputs.rate_of in ("peak-60s", "peak-10s")
    steady = steady or inputs.concurrency is not None
    if spells > _BUSY_SPELLS and not steady:
        notes.append(
            f"{trace.name}: arrivals come in busy spells (counts per minute vary "
            f"{spells:.0f} times as much as Poisson traffic's); the formulas only know the "
            "times between arrivals and may promise too much, the simulator replays them"
        )
    return workload, notes


def _reuse(trace: Trace, notes: list[str]) -> float:
    """Share of the prompt tokens that an unlimited cache finds, noted; ``nan`` when not known."""
    reuse = prefix_reuse(trace)
    if reuse is None:
        return math.nan
    notes.append(
        f"{trace.name}: an unlimited prefix cache would find {reuse.blocks:.1%} of the prompts' "
        f"blocks, {reuse.tokens:.1%} of their tokens; real ones find less"
    )
    return reuse.tokens


def _planned(inputs: Inputs, workload: Workload) -> Workload:
    """The part of the traffic that ``--rate-of`` names."""
    wanted = f"--rate-of {inputs.rate_of}"
    if not math.isfinite(float(workload.rate)):
        raise InputError(
            f"{wanted}: {workload.name} brings no arrival rate; give --rate, or a trace with "
            "arrival times"
        )
    if inputs.rate_of == "mean":
        return workload
    seconds = 10 if inputs.rate_of == "peak-10s" else 60
    peak = workload.peak_10s if seconds == 10 else workload.peak_60s
    if peak is None:
        raise InputError(f"{wanted}: {workload.name} is shorter than {seconds} s; give --rate")
    return busiest(workload, peak)
