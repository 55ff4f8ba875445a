"""Goodput of many deployments on sampled traces."""

import dataclasses
import functools
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluidserve._typing import Leaf
from fluidserve.errors import InputError
from fluidserve.sampled.blocks import in_blocks
from fluidserve.sampled.margin import attainments, margin, spare_growth
from fluidserve.sampled.search import EVALUATIONS, search
from fluidserve.sampled.serve import Program, has_room, program_for, stacked
from fluidserve.sampled.trace import Rows, Trace, judged, rows_of
from fluidserve.specs.slo import Slo
from fluidserve.timing.instance import AggregatedSystem, System


@dataclasses.dataclass(frozen=True)
class SampledGoodput:
    """Goodput of each candidate, 1/s, (candidates,).

    Attributes:
      value: mean over the traces; 0 where no rate keeps the promise.
      error: standard error of that by the spread between the traces; ``inf`` from one trace.
      of_traces: on each trace, (traces, candidates).
      bracketed: whether rates on both sides were evaluated on every trace; where not, the traces
        are too short to break the promise and the value is a lower bound.
    """

    value: np.ndarray
    error: np.ndarray
    of_traces: np.ndarray
    bracketed: np.ndarray


def goodput(
    system: System | AggregatedSystem,
    slo: Slo,
    traces: Sequence[Trace],
    *,
    guess: Leaf,
    evaluations: int = EVALUATIONS,
) -> SampledGoodput:
    """The largest rate at which each deployment keeps the promise, on each of some traces.

    Where the promise leaves TTFT or TPOT without limit, a backlog would never miss it: there a rate
    also fails if late in the trace more than 1 % of the arrivals stay.

    Args:
      system: a batch of deployments of one kind, leaves of shape (candidates,) or numbers.
      slo: the promise; leaves of shape (candidates,) or numbers.
      traces: requests, all of one length; the more, the less noise.
      guess: where to start, 1/s; by formulas, say. The closer, the fewer evaluations.
      evaluations: of every candidate at least; see `fluidserve.sampled.search.search`.

    Raises:
      InputError: a limit on ITL, which is not searched here, or what
        `fluidserve.sampled.serve.program_for` raises.
    """
    if slo.itl is not None:
        raise InputError("sampled: itl: gaps are measured at a rate (`measure`), not searched")
    program = program_for(system, traces)
    system, slo, guess = stacked((system, slo, guess))
    shape = guess.shape
    longest = max(trace.longest for trace in traces)
    fits = np.flatnonzero(has_room(system, longest))
    of_traces = np.zeros((len(traces), *shape))
    bracketed = np.ones(shape, bool)
    if len(fits):
        evaluate = _Evaluate(program, system, slo, traces, longest)
        count = len(fits)

        def spare(i: np.ndarray, rates: np.ndarray) -> np.ndarray:
            return evaluate(i // count, fits[i % count], rates)

        start = np.tile(guess[fits], len(traces))
        found = search(spare, start, evaluations=evaluations)
        of_traces[:, fits] = found.rate.reshape(len(traces), count)
        bracketed[fits] = found.bracketed.reshape(len(traces), count).all(0)
    value, error = of_traces.mean(0), np.full(shape, np.inf)
    if len(traces) > 1:
        error = of_traces.std(0, ddof=1) / np.sqrt(len(traces))
    return SampledGoodput(value=value, error=error, of_traces=of_traces, bracketed=bracketed)


class _Evaluate:
    """Margins of candidates on traces."""

    def __init__(
        self,
        program: Program,
        system: System | AggregatedSystem,
        slo: Slo,
        traces: Sequence[Trace],
        longest: int,
    ):
        self._leaves = (system, slo)
        self._longest = longest
        self._rows = [rows_of(trace) for trace in traces]
        limits = [slo.ttft, slo.tpot]
        open_ended = any(np.isinf(x).any() for x in limits)
        open_ended &= slo.e2e is None or bool(np.isinf(slo.e2e).any())
        self._engines = program.engines
        self._widths = _compiled_widths(program, open_ended, len(traces[0]), jnp.zeros(()).dtype)
        self._program = functools.partial(_margins, program, open_ended)

    def __call__(self, trace: np.ndarray, candidate: np.ndarray, rate: np.ndarray) -> np.ndarray:
        """Margin of each job: a candidate on a trace at a rate."""
        used = np.unique(trace)
        jobs = [(t, np.flatnonzero(trace == t)) for t in used]

        def evaluate(t: int, job: np.ndarray) -> Any:
            own = jax.tree.map(lambda x: jnp.asarray(x[candidate[job]], float), self._leaves)
            rates = jnp.asarray(rate[job], float)
            return self._program(*own, rates, self._rows[t], self._longest)

        spare = np.empty(len(trace))
        for (_, job), found in zip(
            jobs, in_blocks(jobs, evaluate, self._engines, self._widths), strict=True
        ):
            spare[job] = found
        return spare


@functools.cache
def _compiled_widths(*program: Hashable) -> set[int]:
    """Widths at which a program has run in this process."""
    return set()


@functools.partial(jax.jit, static_argnums=(0, 1))
def _margins(
    program: Program,
    open_ended: bool,
    system: System | AggregatedSystem,
    slo: Slo,
    rate: jax.Array,
    rows: Rows,
    longest: int,
) -> jax.Array:
    """What each lane has to spare of its promise at its rate, as log-odds."""
    served, _ = program.serve(system, rate, rows, longest)
    n_out = rows.n_out[:-1]
    window = judged(n_out.shape[0])
    joint, each = attainments(slo, served, n_out)
    spare = margin(slo, joint, each, window.stop - window.start)
    if not open_ended:
        return spare
    arrival = (rows.whole + rows.part)[:-1] / rate[:, None]
    limits = jnp.isfinite(slo.ttft) & jnp.isfinite(slo.tpot)
    limits = limits | (False if slo.e2e is None else jnp.isfinite(slo.e2e))
    growth = spare_growth(arrival, served.e2e)
    return jnp.where(limits, spare, jnp.minimum(spare, growth))
