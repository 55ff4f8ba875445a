"""Event simulator in NumPy float64: the independent check of every analytical claim.

It shares descriptions (`specs`) and step times (`timing`) with the analysis, and nothing else.
"""

from fluidserve.eventsim.arrivals import draw_requests, gamma_arrivals, streams, trace_arrivals
from fluidserve.eventsim.disaggregated import run
from fluidserve.eventsim.goodput import GoodputEstimate, goodput
from fluidserve.eventsim.measure import (
    Estimate,
    Quantiles,
    Summary,
    attainment,
    estimate,
    meets,
    simulate,
    summarise,
)
from fluidserve.eventsim.records import Gaps, Records, Utilisation

__all__ = [
    "Estimate",
    "Gaps",
    "GoodputEstimate",
    "Quantiles",
    "Records",
    "Summary",
    "Utilisation",
    "attainment",
    "draw_requests",
    "estimate",
    "gamma_arrivals",
    "goodput",
    "meets",
    "run",
    "simulate",
    "streams",
    "summarise",
    "trace_arrivals",
]
