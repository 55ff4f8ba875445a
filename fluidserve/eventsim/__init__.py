"""Event simulator in NumPy float64: the independent check of every analytical claim.

It shares descriptions (`specs`) and step times (`timing`) with the analysis, and nothing else.
"""

from fluidserve.eventsim.arrivals import draw_requests, gamma_arrivals, streams, trace_arrivals
from fluidserve.eventsim.goodput import GoodputEstimate, goodput
from fluidserve.eventsim.horizon import (
    goodput_first,
    mean_phases,
    mean_utilisation,
    runs_for,
    simulate_first,
    summarise_first,
)
from fluidserve.eventsim.measure import (
    FEWEST_TURNS,
    Estimate,
    GapSummary,
    Quantiles,
    Summary,
    attainment,
    closed_window,
    estimate,
    meets,
    simulate,
    simulate_closed,
    summarise,
)
from fluidserve.eventsim.records import Gaps, Records, Utilisation
from fluidserve.eventsim.runs import run, run_closed
from fluidserve.eventsim.static import run_static

__all__ = [
    "FEWEST_TURNS",
    "Estimate",
    "GapSummary",
    "Gaps",
    "GoodputEstimate",
    "Quantiles",
    "Records",
    "Summary",
    "Utilisation",
    "attainment",
    "closed_window",
    "draw_requests",
    "estimate",
    "gamma_arrivals",
    "goodput",
    "goodput_first",
    "mean_phases",
    "mean_utilisation",
    "meets",
    "run",
    "run_closed",
    "run_static",
    "runs_for",
    "simulate",
    "simulate_closed",
    "simulate_first",
    "streams",
    "summarise",
    "summarise_first",
    "trace_arrivals",
]
