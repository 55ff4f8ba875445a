"""Deployments over the arrival rate: by the formulas, with simulated points beside them."""

import dataclasses
import math
from typing import Any

import numpy as np

from fluidserve.problem import Problem
from fluidserve.results import DeploymentResult, finite_json
from fluidserve.search.plan import at_rates
from fluidserve.verify.served import serve

RATES = 12
"""Rates of a curve that nobody chose."""
BEYOND = 1.2
"""Largest of them, as a share of the largest goodput."""
LEVELS = ("p50", "p90", "p99")


@dataclasses.dataclass(frozen=True)
class Curve:
    """One deployment over the rate; arrays of one length, times in s, rates in 1/s.

    Attributes:
      row: the deployment at its goodput.
      rate: arrival rates.
      attainment: share of requests that meet the SLO, by the formulas.
      ttft: quantiles `LEVELS` of TTFT, (3, rates); ``inf`` above capacity.
      tpot: the same of TPOT.
      itl: the same of all gaps between tokens; None unless the SLO limits them.
      points: simulated, at some of the rates.
    """

    row: DeploymentResult
    rate: np.ndarray
    attainment: np.ndarray
    ttft: np.ndarray
    tpot: np.ndarray
    itl: np.ndarray | None
    points: tuple["Point", ...]

    def to_json(self) -> dict[str, Any]:
        """The documented JSON object."""
        return finite_json(
            {
                "label": self.row.deployment.label,
                "kind": self.row.kind,
                "gpus": self.row.gpus,
                "goodput": self.row.goodput,
                "confidence": {"level": self.row.confidence, "reasons": list(self.row.reasons)},
                "rate": self.rate.tolist(),
                "attainment": self.attainment.tolist(),
                "ttft": dict(zip(LEVELS, self.ttft.tolist(), strict=True)),
                "tpot": dict(zip(LEVELS, self.tpot.tolist(), strict=True)),
                "itl": None
                if self.itl is None
                else dict(zip(LEVELS, self.itl.tolist(), strict=True)),
                "simulated": [dataclasses.asdict(point) for point in self.points],
            }
        )


@dataclasses.dataclass(frozen=True)
class Point:
    """A simulated run.

    Attributes:
      rate: arrival rate, 1/s.
      attainment: share of requests that met the SLO.
      low: lower end of its 95 % interval.
      high: upper end.
      ttft: quantiles `LEVELS` of TTFT, s.
      tpot: the same of TPOT.
      itl: the same of all gaps between tokens; None where there are none or too many to keep.
      throughput: requests finished per second.
    """

    rate: float
    attainment: float
    low: float
    high: float
    ttft: tuple[float, ...]
    tpot: tuple[float, ...]
    itl: tuple[float, ...] | None
    throughput: float


def usual_rates(rows: list[DeploymentResult]) -> np.ndarray:
    """Rates in equal steps up to beyond the largest goodput, 1/s."""
    top = max(row.goodput if row.goodput > 0 else row.rate for row in rows)
    return np.linspace(0.0, BEYOND * top, RATES + 1)[1:]


def curve_of(
    problem: Problem, row: DeploymentResult, rates: np.ndarray, *, points: int, requests: int
) -> Curve:
    """A deployment at some rates.

    Args:
      problem: the question.
      row: the deployment, as a plan or an analysis found it.
      rates: 1/s.
      points: rates to simulate as well, spread over those up to a fifth beyond its goodput.
      requests: of each simulated run.
    """
    found = at_rates(problem, row, rates)
    reach = rates[rates <= BEYOND * max(row.goodput, row.rate)]
    reach = reach if len(reach) else rates[:1]
    chosen = np.unique(np.linspace(0, len(reach) - 1, min(points, len(reach))).round().astype(int))
    simulated = []
    for i in chosen if points else ():
        rate = float(reach[i])
        got = serve(problem, row.deployment, rate, requests=requests, seed=int(i)).summary
        simulated.append(
            Point(
                rate=rate,
                attainment=got.attainment.value,
                low=_finite(got.attainment.low, got.attainment.value),
                high=_finite(got.attainment.high, got.attainment.value),
                ttft=tuple(getattr(got.ttft, level) for level in LEVELS),
                tpot=tuple(getattr(got.tpot, level) for level in LEVELS),
                itl=None
                if got.gaps is None
                else tuple(getattr(got.gaps.itl, level) for level in LEVELS),
                throughput=got.throughput,
            )
        )
    return Curve(
        row=row,
        rate=rates,
        attainment=np.asarray(found.asked.attainment),
        ttft=np.asarray(found.latencies.ttft)[:3],
        tpot=np.asarray(found.latencies.tpot)[:3],
        itl=None if found.latencies.itl is None else np.asarray(found.latencies.itl)[:3],
        points=tuple(simulated),
    )


def _finite(value: float, otherwise: float) -> float:
    return value if math.isfinite(value) else otherwise
