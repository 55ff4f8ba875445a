"""The whole input of a question, as people write it: flags of the command line or keys of a file.

Quantities are text with a unit and become SI numbers here. A library user who has the objects
already needs none of this: `fluidserve.problem.Problem` is the interface.
"""

import difflib
import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from fluidserve.errors import InputError
from fluidserve.specs.deployment import TOKEN_BUDGETS, Dispatch, Kind, KvPolicy
from fluidserve.specs.slo import Limit, Slo
from fluidserve.units import parse_quantity

MOST_GPUS = 4096
"""Largest budget that is searched."""
MOST_USERS = 100_000
"""Largest closed loop, whose cross-check still ends."""
MOST_TOKENS = 1_000_000
"""Largest token budget of an iteration."""
DEFAULT_MAX_GPUS = 64
"""Budget of a question that names only a rate."""
_PERCENTILE = re.compile(r"\s*[pP](\d+(?:\.\d*)?)\s*")


def _whole(value: Any) -> Any:
    """Whole numbers as text, also in the form 1e3."""
    number = _number(value)
    if isinstance(number, float):
        if not number.is_integer():
            raise ValueError("must be a whole number")
        return int(number)
    return number


def _number(value: Any) -> Any:
    """Numbers as text; truth values are none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("must be a number")
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise ValueError("must be a number") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


def _names(value: Any) -> Any:
    """A list of names, as TOML has it, the way the command line writes it."""
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return ",".join(value)
    return value


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _quantity(unit: str, *, allow_inf: bool = False) -> BeforeValidator:
    """Reads text with a unit into SI."""

    def read(value: Any, info: ValidationInfo) -> float:
        name = _label(info.context, str(info.field_name))
        return parse_quantity(str(value), unit, name=name, allow_inf=allow_inf)

    return BeforeValidator(read)


RateOf = Literal["mean", "peak-60s", "peak-10s"]
AskedKind = Literal["disaggregated", "colocated", "chunked", "all"]


def _limit(value: Any, info: ValidationInfo) -> Limit | None:
    """Reads a time, or a percentile and a time such as ``p95:500ms``."""
    metric = str(info.field_name)
    name, text = _label(info.context, metric), str(value)
    if value is None:
        return None
    head, colon, rest = text.partition(":")
    share = None
    if colon:
        match = _PERCENTILE.fullmatch(head)
        share = float(match[1]) / 100.0 if match else 0.0
        if not 0.0 < share < 1.0:
            raise InputError(
                f"{name}: {text!r} begins with no percentile above p0 and below p100; write for "
                "example p95:500ms"
            )
    time = parse_quantity(rest if colon else text, "s", name=name)
    if metric == "itl" and share is None:
        raise InputError(
            f"{name}: {text!r} names no percentile; a limit on ITL is for a share of all gaps "
            f"between tokens, write for example p99:{text.strip()}"
        )
    return Limit(metric=metric, time=time, share=share)


def _token_budgets(value: Any) -> tuple[int, ...]:
    """Whole numbers, separated by commas or in a list."""
    parts = value if isinstance(value, list | tuple) else str(value).split(",")
    budgets = [_whole(part.strip() if isinstance(part, str) else part) for part in parts]
    if not budgets or not all(isinstance(x, int) and 1 <= x <= MOST_TOKENS for x in budgets):
        raise ValueError(f"must be whole numbers from 1 to {MOST_TOKENS}, separated by commas")
    return tuple(sorted(set(budgets)))


def _rates(value: Any, info: ValidationInfo) -> tuple[float, ...]:
    """Rates with or without a unit, separated by commas or in a list."""
    name = _label(info.context, str(info.field_name))
    parts = value if isinstance(value, list | tuple) else str(value).split(",")
    rates = [parse_quantity(str(part).strip(), "1/s", name=name) for part in parts]
    if not rates or not all(0.0 < rate < math.inf for rate in rates):
        raise InputError(f"{name}: {value!r} must be rates above zero, such as 5,10,20")
    return tuple(sorted(set(rates)))


Rates = Annotated[tuple[float, ...], BeforeValidator(_rates)]
TokenBudgets = Annotated[tuple[int, ...], BeforeValidator(_token_budgets)]
Count = Annotated[int, BeforeValidator(_whole)]
Number = Annotated[float, BeforeValidator(_number)]
Promised = Annotated[Limit | None, BeforeValidator(_limit)]
Rate = Annotated[float, _quantity("1/s")]
Bandwidth = Annotated[float, _quantity("B/s", allow_inf=True)]
GpuNames = Annotated[str | None, BeforeValidator(_names)]
Model = TypeVar("Model", bound=BaseModel)


class Inputs(BaseModel):
    """Every input of ``plan``, ``simulate`` and ``check``; one file can serve all of them.

    Attributes:
      model: catalog name, or path of a ``config.json``.
      gpu: catalog name, or path of a TOML file; several, separated by commas, to compare them.
      gpu_spec: an accelerator by its numbers, as `fluidserve.io.gpu_spec` reads it.
      gpus: most GPUs that a deployment may use.
      max_gpus: the same for a question that names a rate.
      isl: mean prompt length, tokens.
      osl: mean output length, tokens.
      isl_cv: coefficient of variation of the prompt length.
      osl_cv: coefficient of variation of the output length.
      app: name of an application.
      trace: path of a request trace.
      ttft: limit on the time to first token, with or without a percentile.
      tpot: limit on the time per output token, the same.
      e2e: limit on the time to the last token, the same.
      itl: limit on single gaps between tokens, with a percentile.
      attainment: share of requests that must meet the limits without a percentile together.
      horizon: judge the first so many requests into an empty system; steady state when left out.
      rate: arrival rate to serve, 1/s.
      rate_of: which rate of the traffic to serve instead.
      offline: no limits, all requests there from the start.
      concurrency: users of a closed loop, who each send the next request when the last has ended.
      arrival_cv: coefficient of variation of the times between arrivals.
      prefix_hit: share of the prompt tokens found in the prefix cache.
      max_model_len: longest request that is taken, prompt and output together, tokens.
      link: bandwidth between the pools, B/s.
      profile: name or path of a profile.
      first_token: where the first token leaves; that of the profile when left out.
      weight_dtype: format of the weights; that of the model when left out.
      kv_dtype: format of the KV cache; that of the model when left out.
      memory_utilization: share of the memory that an engine takes; the profile's when left out.
      max_batch: most requests that a decode instance holds.
      prefill_tokens: most tokens in one prefill pass of several prompts.
      prefill_batch: most prompts in one prefill pass.
      dispatch: how requests are spread over the instances of a pool.
      kind: of deployments to compare.
      token_budgets: of chunked prefill, tokens of an iteration, separated by commas.
      kv_policy: what of its KV a request needs before an instance that does both phases admits it.
      top: deployments to show.
      verify: deployments to cross-check by simulation; 3 in a plan, 0 in a simulation when left
        out.
      deployment: label of the deployment to simulate; several, separated by commas, for curves.
      rates: rates of a curve, 1/s.
      rates_per_gpu: of an SLO scale, 1/s for each GPU.
      requests: requests to simulate.
      seed: seed of the simulation.
      as_json: print one JSON object; spelled ``json`` outside.
      csv: file for the rows.
      plot: file for a picture, PNG or SVG.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    gpu: GpuNames = None
    gpu_spec: str | None = None
    gpus: Count | None = Field(None, ge=1, le=MOST_GPUS)
    max_gpus: Count | None = Field(None, ge=1, le=MOST_GPUS)
    isl: Number | None = None
    osl: Number | None = None
    isl_cv: Number | None = None
    osl_cv: Number | None = None
    app: str | None = None
    trace: str | None = None
    ttft: Promised = None
    tpot: Promised = None
    e2e: Promised = None
    itl: Promised = None
    attainment: Number = Field(0.9, gt=0, lt=1)
    horizon: Count | None = Field(None, ge=10, le=1_000_000)
    rate: Rate | None = None
    rate_of: Annotated[RateOf, BeforeValidator(_lower)] | None = None
    offline: bool = False
    concurrency: Count | None = Field(None, ge=1, le=MOST_USERS)
    arrival_cv: Number | None = Field(None, ge=0, le=10)
    prefix_hit: Number | None = Field(None, ge=0, lt=1)
    max_model_len: Count | None = Field(None, ge=2, lt=10**8)
    link: Bandwidth | None = None
    profile: str = "default"
    first_token: Annotated[Literal["prefill", "decode"], BeforeValidator(_lower)] | None = None
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    memory_utilization: Number | None = Field(None, gt=0, le=1)
    max_batch: Count = Field(1024, ge=1, le=1_000_000)
    prefill_tokens: Count | None = Field(None, ge=1, le=10_000_000)
    prefill_batch: Count | None = Field(None, ge=1, le=1_000_000)
    dispatch: Annotated[Dispatch, BeforeValidator(_lower)] = "shared"
    kind: Annotated[AskedKind, BeforeValidator(_lower)] = "all"
    token_budgets: TokenBudgets = TOKEN_BUDGETS
    kv_policy: Annotated[KvPolicy, BeforeValidator(_lower)] = "reserve"
    top: Count = Field(10, ge=1, le=1000)
    verify: Count | None = Field(None, ge=0, le=1000)
    deployment: str | None = None
    rates: Rates = ()
    rates_per_gpu: Rates = ()
    requests: Count = Field(20_000, ge=100, le=1_000_000)
    seed: Count = Field(0, ge=0, lt=2**63)
    as_json: bool = Field(False, alias="json")
    csv: str | None = None
    plot: str | None = None

    @model_validator(mode="after")
    def _one_source_of_traffic(self) -> Self:
        lengths = [f for f in ("isl", "osl", "isl_cv", "osl_cv") if getattr(self, f) is not None]
        given = [flag(name) for name in ("app", "trace") if getattr(self, name) is not None]
        if lengths:
            given.insert(0, flag(lengths[0]))
        if not given:
            raise InputError("no traffic: give --isl and --osl, or --app, or --trace")
        if len(given) > 1:
            raise InputError(
                f"{' and '.join(given)} are given together; traffic comes from one of --isl with "
                "--osl, --app and --trace"
            )
        absent = [f for f in ("isl", "osl") if lengths and getattr(self, f) is None]
        if absent:
            raise InputError(f"{flag(lengths[0])} is given without {flag(absent[0])}; give both")
        return self

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        check_hardware(self.gpu, self.gpu_spec)
        if self.gpus is not None and self.max_gpus is not None:
            raise InputError("--gpus and --max-gpus are given together; give one of them")
        if self.rate is not None and self.rate_of is not None:
            raise InputError("--rate and --rate-of are given together; give one of them")
        if self.rate_of is not None and self.isl is not None:
            raise InputError(
                "--rate-of needs traffic that has a rate: --trace with arrival times, or an "
                "application measured from one"
            )
        if self.prefill_batch == 1 and self.prefill_tokens is not None:
            raise InputError(
                "--prefill-batch 1 leaves --prefill-tokens nothing to do; give one of them"
            )
        if self.as_json and self.csv is not None:
            raise InputError("--json and --csv are given together; give one of them")
        return self

    @model_validator(mode="after")
    def _some_limit(self) -> Self:
        limits = [limit for limit in self._limits if limit is not None]
        if self.offline:
            return self
        if not limits:
            raise InputError(
                "no limit: give at least one of --ttft, --tpot, --e2e and --itl, or --offline for "
                "the most tokens/s without any"
            )
        if "attainment" in self.model_fields_set and all(x.share is not None for x in limits):
            raise InputError(
                "--attainment is of limits without a percentile, and each limit has one; leave "
                "--attainment or a percentile out"
            )
        if self.e2e is not None and self.horizon is not None:
            raise InputError(
                "--e2e and --horizon are given together; the formulas for the first requests have "
                "no end-to-end latency, give one of them"
            )
        if self.itl is not None and self.horizon is not None:
            raise InputError(
                "--itl and --horizon are given together; the formulas for the first requests have "
                "no single gaps, give one of them"
            )
        return self

    @model_validator(mode="after")
    def _offline_waits_for_nobody(self) -> Self:
        if not self.offline:
            return self
        names = ("ttft", "tpot", "e2e", "itl", "rate", "rate_of", "concurrency", "horizon")
        names = (*names, "max_gpus", "deployment", "plot", "csv", "arrival_cv")
        for name in names:
            if getattr(self, name) is not None:
                raise InputError(
                    f"--offline and {flag(name)} are given together; offline there are no limits "
                    "and no arrivals, only --gpus"
                )
        if "attainment" in self.model_fields_set:
            raise InputError("--offline and --attainment are given together; there are no limits")
        if self.verify is not None:
            raise InputError("--offline simulates every row that it shows; leave --verify out")
        if self.gpus is None:
            raise InputError("--offline: give --gpus N, the budget")
        return self

    @model_validator(mode="after")
    def _users_set_the_pace(self) -> Self:
        if self.concurrency is None:
            return self
        for name in ("rate", "rate_of", "arrival_cv", "horizon"):
            if getattr(self, name) is not None:
                raise InputError(
                    f"--concurrency and {flag(name)} are given together; in a closed loop the "
                    "users set the pace, and it is judged in steady state"
                )
        if self.plot is not None:
            raise InputError("--concurrency and --plot are given together; plots are over rates")
        return self

    @property
    def _limits(self) -> tuple[Limit | None, ...]:
        return self.ttft, self.tpot, self.e2e, self.itl

    @property
    def slo(self) -> Slo:
        """The promise."""
        times, shares = {}, {}
        for limit in self._limits:
            if limit is not None:
                times[limit.metric], shares[f"{limit.metric}_share"] = limit.time, limit.share
        return Slo(attainment=self.attainment, **times, **shares)

    @property
    def fewest(self) -> bool:
        """Whether a plan for given users looks for the fewest GPUs that carry them."""
        return self.concurrency is not None and self.gpus is None

    @property
    def kinds(self) -> tuple[Kind, ...] | None:
        """The kinds asked for; None for all that the question has answers for."""
        return None if self.kind == "all" else (self.kind,)

    @property
    def budget(self) -> int:
        """Most GPUs of a plan.

        Raises:
          InputError: neither a budget, nor a rate, nor users.
        """
        asked = (self.gpus, self.rate, self.rate_of, self.concurrency)
        if all(value is None for value in asked):
            raise InputError(
                "give --gpus N for the most goodput within N GPUs, or --rate R for the fewest "
                "GPUs that serve R requests/s"
            )
        return self.gpus or self.max_gpus or DEFAULT_MAX_GPUS


def check_hardware(gpu: str | None, gpu_spec: str | None) -> None:
    """Refuses a question without an accelerator, or with two kinds of them.

    Raises:
      InputError: neither is given, or both.
    """
    if gpu is None and gpu_spec is None:
        raise InputError("--gpu must be given, or --gpu-spec with the numbers of a GPU")
    if gpu is not None and gpu_spec is not None:
        raise InputError("--gpu and --gpu-spec are given together; give one of them")


def flag(field: str) -> str:
    """A field as the command line spells it.

    Example:
      >>> flag("isl_cv"), flag("as_json")
      ('--isl-cv', '--json')
    """
    return "--" + field.removeprefix("as_").replace("_", "-")


def parse_inputs(values: Mapping[str, Any], labels: Mapping[str, str] | None = None) -> Inputs:
    """Validates the inputs.

    Args:
      values: by field, as text or as TOML has them.
      labels: what a field is called in error messages, where that is not its flag.

    Raises:
      InputError: the first thing wrong, in one line.
    """
    return parse_as(Inputs, values, labels)


def parse_as(
    kind: type[Model], values: Mapping[str, Any], labels: Mapping[str, str] | None = None
) -> Model:
    """`parse_inputs` for another schema."""
    labels = dict(labels or {})
    try:
        return kind.model_validate(dict(values), context=labels)
    except ValidationError as error:
        raise InputError(_one_line(kind, error, values, labels)) from None


def _label(labels: Mapping[str, str] | None, field: str) -> str:
    return (labels or {}).get(field, flag(field))


def _one_line(
    kind: type[BaseModel],
    error: ValidationError,
    values: Mapping[str, Any],
    labels: Mapping[str, str],
) -> str:
    """What, where, and what would be right, of the first thing that is wrong."""
    details = error.errors(include_url=False)
    missing = [flag(str(d["loc"][0])) for d in details if d["type"] == "missing"]
    wrong = [d for d in details if d["type"] != "missing"]
    if not wrong:
        return f"{' and '.join(missing)} must be given"
    detail = wrong[0]
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return str(cause)
    field = str(detail["loc"][0])
    where = _label(labels, field)
    if detail["type"] == "extra_forbidden":
        return f"{where} is not an input; {_closest(kind, field)}"
    shown = repr(values.get(field, detail["input"]))
    say: Callable[[dict[str, Any]], str] | None = _SENTENCES.get(detail["type"])
    problem = cause if cause is not None else say(detail.get("ctx", {})) if say else detail["msg"]
    return f"{where}: {shown} {problem}"


_SENTENCES: dict[str, Callable[[dict[str, Any]], str]] = {
    "greater_than": lambda c: f"must be above {c['gt']:g}",
    "greater_than_equal": lambda c: f"must be at least {c['ge']:g}",
    "less_than": lambda c: f"must be below {c['lt']:g}",
    "less_than_equal": lambda c: f"must be at most {c['le']:,}",
    "literal_error": lambda c: f"must be {c['expected'].replace(chr(39), '')}",
    "string_type": lambda _: "must be text",
    "bool_type": lambda _: "must be true or false",
    "bool_parsing": lambda _: "must be true or false",
}


def _closest(kind: type[BaseModel], field: str) -> str:
    known = sorted(flag(name).removeprefix("--") for name in kind.model_fields)
    close = difflib.get_close_matches(field.replace("_", "-"), known, n=1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
