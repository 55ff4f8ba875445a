"""What a question is answered with: plain records, ready for tables and for JSON."""

import dataclasses
import math
from typing import Any

from fluidserve.specs.deployment import Deployment, Kind


@dataclasses.dataclass(frozen=True)
class Latency:
    """Mean and quantiles of a latency over requests, s; ``inf`` where it grows without bound.

    Attributes:
      mean: mean.
      p50: median.
      p90: what 90% of the requests do not exceed.
      p99: the same for 99%.
      at_share: the same for the share that its limit asks for by itself; None without one.
    """

    mean: float
    p50: float
    p90: float
    p99: float
    at_share: float | None = None


@dataclasses.dataclass(frozen=True)
class Phases:
    """Mean time of a request in each phase, s; all ``inf`` where a stage is overloaded.

    Attributes:
      queue: waiting for prefill.
      prefill: prefill.
      handover: until its KV is in the decode instance, wait for a slot included.
      first_step: from there to the end of its first decode step.
      decode: the other decode steps.
    """

    queue: float
    prefill: float
    handover: float
    first_step: float
    decode: float


@dataclasses.dataclass(frozen=True)
class Simulated:
    """What the event simulator found for a deployment.

    Attributes:
      goodput: largest rate that met the SLO, 1/s; in a closed loop the throughput.
      goodput_interval: its 95% interval over independent runs, 1/s.
      attainment: share of requests that met the SLO at the rate of the row.
      ttft: time to first token at that rate.
      tpot: time per output token at that rate.
      requests: requests of each run.
      runs: runs that were needed.
      e2e: end-to-end latency at that rate.
      itl: gaps between tokens at that rate; None unless the SLO limits them.
    """

    goodput: float
    goodput_interval: tuple[float, float]
    attainment: float
    ttft: Latency
    tpot: Latency
    requests: int
    runs: int
    e2e: Latency
    itl: Latency | None = None


@dataclasses.dataclass(frozen=True)
class Replayed:
    """A recording served at its own speed.

    Attributes:
      rate: mean rate of the recording, 1/s.
      attainment: share of requests that met the SLO.
      ttft: time to first token.
      tpot: time per output token.
      requests: how many were replayed.
      kept: whether the promise is kept.
    """

    rate: float
    attainment: float
    ttft: Latency
    tpot: Latency
    requests: int
    kept: bool


@dataclasses.dataclass(frozen=True)
class Refined:
    """What serving requests with one instance said of the formulas.

    Attributes:
      factor: goodput found over that of the formulas, applied to all rates of the row.
      error: its standard error by the spread between traces; 0 from a single one.
    """

    factor: float
    error: float


@dataclasses.dataclass(frozen=True)
class DeploymentResult:
    """One deployment with its numbers.

    Attributes:
      deployment: what is deployed.
      kind: ``disaggregated``, ``colocated`` or ``chunked``.
      goodput: largest rate that meets the SLO, 1/s; in a closed loop the throughput with all users
        where they meet it, else 0.
      rate: the rate that the numbers below belong to, 1/s; in a closed loop the throughput.
      ttft: time to first token at that rate.
      tpot: time per output token after the first at that rate, over requests with two and more.
      attainment: share of requests that meet the joint limits together; all limits where each has
        a share of its own; share of the gaps where the only limit is on ITL.
      prefill_load: busy share of the prefill pool.
      link_load: busy share of the KV link.
      decode_load: demand on the decode pool over its throughput with all slots taken.
      batch: mean requests in decode per instance.
      kv_use: mean share of the decode pool's KV memory that is reserved.
      phases: where the time of a request goes at that rate.
      after_one_failure: goodput with one instance less, of the pool that hurts more, 1/s; 0 where
        that pool has a single instance.
      binding: what keeps goodput from being higher, a label of `fluidserve.status.Binding`.
      confidence: ``green``, ``amber`` or ``red``.
      reasons: why it is not green.
      tied: whether its goodput cannot be told from the first one's.
      concurrency: users of a closed loop; None in an open one.
      output_token_rate: output tokens per second at the rate.
      simulated: the cross-check; None where it was not asked for.
      replayed: the recording whose busiest window was planned for; None where there is none.
      e2e: end-to-end latency at that rate; None unless the SLO limits it.
      refined: the refining tier; None where the formulas speak alone.
      itl: gaps between tokens at that rate; None unless the SLO limits them and there are any.
    """

    deployment: Deployment
    kind: Kind
    goodput: float
    rate: float
    ttft: Latency
    tpot: Latency
    attainment: float
    prefill_load: float
    link_load: float
    decode_load: float
    batch: float
    kv_use: float
    phases: Phases
    after_one_failure: float
    binding: str
    confidence: str
    reasons: tuple[str, ...]
    tied: bool = False
    concurrency: int | None = None
    output_token_rate: float = math.nan
    simulated: Simulated | None = None
    replayed: Replayed | None = None
    e2e: Latency | None = None
    refined: Refined | None = None
    itl: Latency | None = None

    @property
    def gpus(self) -> int:
        """GPUs over all pools."""
        return self.deployment.gpus

    @property
    def goodput_per_gpu(self) -> float:
        """Goodput over the GPUs of all pools, 1/s."""
        return self.goodput / self.gpus

    def to_json(self) -> dict[str, Any]:
        """The row as the documented JSON object; no NaN and no infinity."""
        deployment = self.deployment
        pools = [
            {"role": role, "replicas": p.replicas, "tp": p.tp, "pp": p.pp, "gpu": p.gpu}
            for role, p in deployment.pools.items()
        ]
        row = {
            "label": deployment.label,
            "kind": self.kind,
            "gpus": self.gpus,
            "pools": pools,
            "token_budget": getattr(deployment, "token_budget", None),
            "goodput": self.goodput,
            "goodput_per_gpu": self.goodput_per_gpu,
            "after_one_failure": self.after_one_failure,
            "rate": self.rate,
            "concurrency": self.concurrency,
            "output_token_rate": self.output_token_rate,
            "ttft": dataclasses.asdict(self.ttft),
            "tpot": dataclasses.asdict(self.tpot),
            "e2e": dataclasses.asdict(self.e2e) if self.e2e else None,
            "itl": dataclasses.asdict(self.itl) if self.itl else None,
            "attainment": self.attainment,
            "utilization": {
                "prefill": self.prefill_load,
                "link": self.link_load,
                "decode": self.decode_load,
            },
            "batch": self.batch,
            "kv_use": self.kv_use,
            "phases": dataclasses.asdict(self.phases),
            "binding": self.binding,
            "confidence": {"level": self.confidence, "reasons": list(self.reasons)},
            "tied": self.tied,
            "refined": dataclasses.asdict(self.refined) if self.refined else None,
            "simulated": dataclasses.asdict(self.simulated) if self.simulated else None,
            "replayed": dataclasses.asdict(self.replayed) if self.replayed else None,
        }
        return finite_json(row)


@dataclasses.dataclass(frozen=True)
class Screening:
    """How the candidates of a plan were picked out of more, by tables.

    Attributes:
      deployments: how many there were to pick from.
      error_p99: how far off the tables were for 99 % of the candidates, as a share of goodput.
      error_max: the same for all candidates.
    """

    deployments: int
    error_p99: float
    error_max: float


@dataclasses.dataclass(frozen=True)
class PlanResult:
    """The answer to a planning question.

    Attributes:
      deployments: best first.
      candidates: how many were scored.
      seconds: time from the question to the analytical answer.
      budget: most GPUs that a deployment could use.
      rate: the rate asked for, 1/s; None when the most goodput was wanted.
      rejected: instance shapes left out, by reason.
      concurrency: users of a closed loop; None in an open one.
      fewest: whether rows are ranked by fewest GPUs.
      best_of_kind: the best deployment of each kind that answers the question.
      failed_kinds: why the others do not.
      screening: how candidates were picked; None where every deployment is one.
    """

    deployments: list[DeploymentResult]
    candidates: int
    seconds: float
    budget: int
    rate: float | None
    rejected: dict[str, int]
    concurrency: int | None = None
    fewest: bool = False
    best_of_kind: dict[Kind, DeploymentResult] = dataclasses.field(default_factory=dict)
    failed_kinds: dict[Kind, str] = dataclasses.field(default_factory=dict)
    screening: Screening | None = None


@dataclasses.dataclass(frozen=True)
class ScaleResult:
    """How far all limits of a promise can be tightened for a deployment at a rate.

    Attributes:
      deployment: what is deployed.
      kind: ``disaggregated``, ``colocated`` or ``chunked``.
      rate: arrival rate, 1/s.
      formulas: least factor on all limits by the formulas.
      simulated: the same by the event simulator, and the ends of its 95% interval, infinite from a
        single run; None where it was not asked for.
    """

    deployment: Deployment
    kind: Kind
    rate: float
    formulas: float
    simulated: tuple[float, float, float] | None = None

    @property
    def gpus(self) -> int:
        """GPUs over all pools."""
        return self.deployment.gpus

    @property
    def scale(self) -> float:
        """The simulated factor where there is one, else that of the formulas."""
        return self.formulas if self.simulated is None else self.simulated[0]

    def to_json(self) -> dict[str, Any]:
        """The documented JSON object."""
        value, low, high = (None, None, None) if self.simulated is None else self.simulated
        return finite_json(
            {
                "label": self.deployment.label,
                "kind": self.kind,
                "gpus": self.gpus,
                "rate": self.rate,
                "slo_scale": self.scale,
                "formulas": self.formulas,
                "simulated": value,
                "simulated_low": low,
                "simulated_high": high,
            }
        )


@dataclasses.dataclass(frozen=True)
class OfflineResult:
    """Throughput of a deployment where all requests are there from the start.

    Attributes:
      deployment: what is deployed.
      kind: ``disaggregated``, ``colocated`` or ``chunked``.
      formulas: requests finished per second by the formulas.
      rate: the same by the event simulator, mean over runs, 1/s.
      interval: its 95% interval, 1/s.
      tokens: mean prompt and output tokens of a request.
      binding: what is full, a label of `fluidserve.status.Binding`.
    """

    deployment: Deployment
    kind: Kind
    formulas: float
    rate: float
    interval: tuple[float, float]
    tokens: tuple[float, float]
    binding: str

    @property
    def gpus(self) -> int:
        """GPUs over all pools."""
        return self.deployment.gpus

    @property
    def output_token_rate(self) -> float:
        """Output tokens per second."""
        return self.rate * self.tokens[1]

    @property
    def token_rate_per_gpu(self) -> float:
        """Tokens of prompts and outputs together, per second and GPU."""
        return self.rate * sum(self.tokens) / self.gpus

    def to_json(self) -> dict[str, Any]:
        """The documented JSON object."""
        return finite_json(
            {
                "label": self.deployment.label,
                "kind": self.kind,
                "gpus": self.gpus,
                "rate": self.rate,
                "rate_interval": list(self.interval),
                "formulas": self.formulas,
                "output_token_rate": self.output_token_rate,
                "token_rate_per_gpu": self.token_rate_per_gpu,
                "binding": self.binding,
            }
        )


def finite_json(value: Any) -> Any:
    """A copy in which every number that JSON cannot hold is None.

    Example:
      >>> finite_json({"a": [1.0, float("inf")]})
      {'a': [1.0, None]}
    """
    if isinstance(value, dict):
        return {k: finite_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite_json(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
