"""Answers in plain sentences."""

import dataclasses
import math

from fluidserve.eventsim import Summary
from fluidserve.eventsim.measure import STALL
from fluidserve.problem import Problem
from fluidserve.report.numbers import large, percent, three_digits, times_more
from fluidserve.report.traffic import burst_sentences, prefix_sentences
from fluidserve.results import DeploymentResult, PlanResult
from fluidserve.search.plan import TIE
from fluidserve.specs.deployment import Pool
from fluidserve.specs.model import ModelSpec
from fluidserve.specs.slo import (
    Limit,
    Slo,
    joint_limits,
    limits_of,
    percentile_name,
    reported_limits,
    request_limits,
)
from fluidserve.status import ADVICE, ADVICE_TOGETHER, Binding
from fluidserve.timing.saturation import saturation_length
from fluidserve.units import format_bandwidth, format_time
from fluidserve.verify.crosscheck import difference

_LISTED_TIES = 4


def explain(problem: Problem, result: PlanResult) -> list[str]:
    """What the best deployment is, what it does, what limits it, and how far to trust it."""
    best = result.deployments[0]
    return [
        _what(result, best),
        _serves(problem, result, best),
        *_ties(result),
        *screening_sentences(result),
        time_sentence(best),
        failure_sentence(best),
        limit_sentence(best),
        confidence_sentence(best),
        *burst_sentences(problem, best),
        *prefix_sentences(problem),
        profile_sentence(problem),
        saturation_sentence(problem, next(iter(best.deployment.pools.values()))),
    ]


def question_sentence(problem: Problem) -> str:
    """The question in one line."""
    engine = problem.engine
    cv = math.sqrt(float(problem.workload.arrival_scv))
    arrivals = "Poisson arrivals" if cv == 1 else f"arrivals with cv {cv:.3g}"
    if not limits_of(problem.slo):
        arrivals = "all requests there from the start"
    if problem.workload.concurrency is not None:
        arrivals = f"closed loop of {problem.workload.concurrency:,} users"
    if problem.horizon is not None:
        arrivals += f", the first {problem.horizon:,} requests into an empty system"
    rule = "" if engine.dispatch == "shared" else f", dispatch {engine.dispatch}"
    promised = promise_phrase(problem.slo) or "no limits"
    return (
        f"{problem.model.name} on {_marked(problem)}, {problem.workload.name}, {arrivals}, "
        f"{promised}, link {format_bandwidth(engine.link_bandwidth)}{rule}."
    )


def _marked(problem: Problem) -> str:
    """The accelerator, with a mark where none of its step times were measured."""
    measured = problem.engine.profile.measured(problem.gpu.name)
    return problem.gpu.name + ("" if measured else " (UNMEASURED)")


def promise_phrase(slo: Slo) -> str:
    """The limits in words.

    Example:
      >>> promise_phrase(Slo(ttft=0.5, tpot=0.025))
      'TTFT <= 500ms and TPOT <= 25ms for 90% of the requests'
      >>> promise_phrase(Slo(ttft=0.5, ttft_share=0.95, e2e=10.0))
      'E2E <= 10s for 90% of the requests, P95 TTFT <= 500ms'
    """
    joint = [_limit_phrase(limit) for limit in joint_limits(slo)]
    own = [_limit_phrase(limit) for limit in limits_of(slo) if limit.share is not None]
    together = [f"{_listed(joint)} for {_share(slo)} of the requests"] if joint else []
    return ", ".join(together + own)


def screening_sentences(result: PlanResult) -> list[str]:
    """That not every deployment was scored, and what may be missing."""
    found = result.screening
    if found is None:
        return []
    return [
        f"Screened: tables picked the {result.candidates:,} that were scored out of "
        f"{found.deployments:,} deployments. On those their goodput was off by at most "
        f"{found.error_p99:.2%} for 99 in 100 and {found.error_max:.2%} for all. One that was left "
        "out may be better than the tables have it by as much."
    ]


def limit_sentence(row: DeploymentResult) -> str:
    """What keeps the goodput from being higher, and what would help."""
    advice = (ADVICE if row.kind == "disaggregated" else ADVICE_TOGETHER)[
        Binding[row.binding.upper()]
    ]
    return f"What limits it: {advice}"


def time_sentence(row: DeploymentResult) -> str:
    """Where the time of a mean request goes."""
    names = ("queue", "prefill", "hand-over", "first step", "decode")
    times = dataclasses.astuple(row.phases)
    if not all(map(math.isfinite, times)):
        return "Where the time goes: a stage is overloaded, so times grow without bound."
    parts = ", ".join(f"{name} {format_time(t)}" for name, t in zip(names, times, strict=True))
    return f"Where the time of a request goes, on average: {parts}."


def failure_sentence(row: DeploymentResult) -> str:
    """What is left when an instance fails."""
    deployment, left = row.deployment, row.after_one_failure
    if left > 0:
        return (
            f"With one instance less, of the pool that hurts more: {three_digits(left)} requests/s "
            f"({percent(left / row.goodput)} of the goodput)."
        )
    alone = [role for role, pool in deployment.pools.items() if pool.replicas == 1]
    if not alone:
        missed = "never met" if row.concurrency is None else "missed with all users"
        return f"With one instance less, of the pool that hurts more, the SLO is {missed}."
    return f"If the only {' or the only '.join(alone)} instance fails, nothing is served."


def confidence_sentence(row: DeploymentResult) -> str:
    """The level of confidence and why."""
    if not row.reasons:
        return (
            f"Confidence: {row.confidence}; none of the known weak spots of the formulas applies."
        )
    return f"Confidence: {row.confidence}; {'; '.join(row.reasons)}."


def profile_sentence(problem: Problem) -> str:
    """Whether the step times rest on measured or on assumed constants."""
    profile = problem.engine.profile
    kind, _, rest = profile.provenance(problem.gpu.name).partition(": ")
    if kind == "fitted":
        return f"Step times: profile {profile.name}, constants fitted to measurements ({rest})."
    detail = rest or kind
    return (
        f"Step times: profile {profile.name}, constants ASSUMED, not measured on "
        f"{problem.gpu.name} ({detail})."
    )


def model_sentence(model: ModelSpec) -> str:
    """What the weights take, and what a request keeps."""
    kept = [f"{large(model.kv_bytes_per_token + model.index_bytes_per_token)}B per token"]
    if model.window:
        kept.append(f"{large(model.kv_window_bytes)}B in windows of {model.window:,} tokens")
    if model.state_bytes:
        kept.append(f"{large(model.state_bytes)}B of state")
    text = f"Memory: {large(model.weight_bytes)}B of weights ({model.weight_dtype}); a request "
    text += f"keeps {', '.join(kept)}"
    if model.sparse_tokens:
        text += f", of which it attends {model.sparse_tokens:,} tokens"
    return text + "."


def saturation_sentence(problem: Problem, pool: Pool) -> str:
    """How long a prompt saturates a prefill instance, and how many are computed at once."""
    length = saturation_length(problem.instance(pool.tp, pool.pp))
    return (
        f"L_m = {length:,} prompt tokens bring a prefill instance to 90% of its throughput "
        f"(attention left out); prefill batch {_together(problem)}."
    )


def _together(problem: Problem) -> str:
    """How many prompts a prefill pass takes."""
    engine = problem.engine
    if engine.prefill_batch == 1:
        return "1"
    prompts = f"up to {engine.prefill_batch:,} prompts"
    if engine.prefill_tokens is None:
        return prompts
    return f"{prompts} of {engine.prefill_tokens:,} tokens together"


def crosscheck_sentences(result: PlanResult) -> list[str]:
    """What the cross-check is, what it found, and what it cannot find."""
    checked = [r for r in result.deployments if r.simulated is not None]
    worst = max(checked, key=lambda r: abs(difference(r)))
    what = "goodput" if result.concurrency is None else "throughput"
    sentences = [
        "Cross-check: the event simulator shares the step times with the formulas but no queueing "
        f"code; largest difference in {what} {difference(worst):+.1%} "
        f"({worst.deployment.label}, formulas over simulation)."
    ]
    if all(not math.isfinite(r.simulated.goodput_interval[0]) for r in checked if r.simulated):
        sentences.append("Recorded arrivals were replayed once, so there is no interval.")
    else:
        sentences.append("± is half a 95% interval over independent runs.")
    if any(r.confidence != "green" and abs(difference(r)) > 0.05 for r in checked):
        sentences.append("Where the two differ, trust the simulated numbers.")
        most = max(checked, key=lambda r: r.simulated.goodput if r.simulated else 0.0)
        if result.rate is None and most.simulated and most is not checked[0]:
            sentences.append(
                f"Of those simulated {most.deployment.label} serves most: "
                f"{three_digits(most.simulated.goodput)} requests/s."
            )
    short = [r.deployment.label for r in checked if _falls_short(r, result.rate)]
    if short:
        sentences.append(
            f"NOT SERVED in the simulation: {three_digits(result.rate or 0.0)} requests/s on "
            f"{', '.join(short)}; ask for a larger rate until it is."
        )
    return sentences


def _falls_short(row: DeploymentResult, rate: float | None) -> bool:
    """Whether the simulation serves less than the rate asked for, beyond its interval."""
    if rate is None or row.simulated is None:
        return False
    high = row.simulated.goodput_interval[1]
    return (high if math.isfinite(high) else row.simulated.goodput) < rate


def overload_sentence(row: DeploymentResult, horizon: int | None = None) -> str:
    """Which stage is asked for more than it can do; empty when none is.

    Over the first requests that is no instability, only a queue that grows as long as they come.
    """
    loads = {
        "the prefill pool": row.prefill_load,
        "the KV link": row.link_load,
        "the decode pool": row.decode_load,
    }
    over = [f"{name} ({percent(load)})" for name, load in loads.items() if not load < 1.0]
    if not over:
        return ""
    if horizon is not None:
        return (
            f"Above capacity at {three_digits(row.rate)} requests/s: {' and '.join(over)}. The "
            f"numbers hold for the first {horizon:,} requests and grow with their number; in "
            "steady state this rate is unstable."
        )
    return (
        f"UNSTABLE at {three_digits(row.rate)} requests/s: {' and '.join(over)} is asked for more "
        "than it can do; times grow with the length of the run."
    )


def pool_phrase(pool: Pool, role: str) -> str:
    """A pool in words, such as ``2 prefill instances of 4 GPUs each (tp2 pp2)``."""
    size, several = pool.tp * pool.pp, pool.replicas > 1
    shape = f" (tp{pool.tp} pp{pool.pp})" if pool.pp > 1 else f" (tp{pool.tp})" if size > 1 else ""
    gpus = f"{size} GPU{'s' if size > 1 else ''}{' each' if several else ''}{shape}"
    return f"{pool.replicas} {role} instance{'s' if several else ''} of {gpus}"


def _what(result: PlanResult, best: DeploymentResult) -> str:
    deployment, used = best.deployment, best.gpus
    pools = _listed([pool_phrase(pool, role) for role, pool in deployment.pools.items()])
    text = f"Best: {deployment.label}: {pools}, {used} GPU{'s' if used > 1 else ''}"
    if result.rate is not None:
        return f"{text}, the fewest of at most {result.budget} that reach the rate."
    if result.fewest:
        return f"{text}, the fewest of at most {result.budget} that carry the users."
    idle = result.budget - used
    if not idle:
        return f"{text}, all of the budget."
    stay = "stays" if idle == 1 else "stay"
    return (
        f"{text} of {result.budget}; {idle} {stay} idle, as no deployment that uses more serves "
        f"over {TIE:.0%} more."
    )


def _serves(problem: Problem, result: PlanResult, best: DeploymentResult) -> str:
    slo = problem.slo
    when, of = " in steady state", ""
    if problem.horizon is not None:
        when = " (not steady state)"
        of = f" of the first {problem.horizon:,} requests into an empty system"
    goodput = (
        f"{three_digits(best.goodput)} requests/s ({three_digits(best.goodput_per_gpu)} per GPU)"
    )
    if best.concurrency is not None:
        return users_sentence(problem, best)
    if result.rate is None:
        return f"Goodput: {goodput}, the largest rate at which {_held(slo, of)}{when}."
    headroom = times_more(best.goodput / result.rate - 1.0)
    return (
        f"Goodput: {goodput}; the rate asked for is {result.rate:g}, which leaves a headroom of "
        f"{headroom}. At that rate {percent(best.attainment)} of {_counted(slo)} {_meet(slo)}."
    )


def stall_sentences(summary: Summary) -> list[str]:
    """How many requests stall; nothing where gaps were not recorded."""
    gaps = summary.gaps
    if gaps is None or not math.isfinite(gaps.longest.mean):
        return []
    return [
        f"Stalls: {percent(gaps.stalled)} of the simulated requests have a gap above {STALL:g} "
        f"times the median gap of {format_time(gaps.itl.p50)}."
    ]


def users_sentence(problem: Problem, row: DeploymentResult) -> str:
    """What a closed loop comes to, and whether it keeps the promise."""
    slo = problem.slo
    met = f"{percent(row.attainment)} of {_counted(slo)} {_meet(slo)}"
    kept = "which meets the SLO" if row.goodput > 0 else "which MISSES the SLO"
    return (
        f"Throughput: {three_digits(row.rate)} requests/s ({three_digits(row.rate / row.gpus)} per "
        f"GPU), {three_digits(row.output_token_rate)} output tokens/s, with {row.concurrency:,} "
        f"users who each send the next request when the last has ended; {met}, {kept} "
        f"({_held(slo, '')})."
    )


def _counted(slo: Slo) -> str:
    """What the reported attainment is a share of."""
    return "the requests" if request_limits(slo) else "the gaps between tokens"


def _meet(slo: Slo) -> str:
    """What the requests do that count towards the attainment."""
    names = [limit.metric.upper() for limit in reported_limits(slo)]
    if len(names) == len(limits_of(slo)) > 1:
        return "meet both limits" if len(names) == 2 else "meet all limits"
    return f"meet the limit{'s' if len(names) > 1 else ''} on {_listed(names)}"


def _held(slo: Slo, of: str) -> str:
    """The promise as a state of affairs; `of` says which requests, where not all are meant."""
    own = [_limit_phrase(limit) for limit in limits_of(slo) if limit.share is not None]
    counted = of or " of the requests"
    parts = [f"{_share(slo)}{counted} {_meet(slo)}"] if joint_limits(slo) else []
    if own:
        among = of if not parts else ""
        parts.append(f"{_listed(own)} {'hold' if len(own) > 1 else 'holds'}{among}")
    return " and ".join(parts)


def _limit_phrase(limit: Limit) -> str:
    percentile = "" if limit.share is None else f"{percentile_name(limit.share)} "
    return f"{percentile}{limit.metric.upper()} <= {format_time(limit.time)}"


def _listed(parts: list[str]) -> str:
    """Parts with commas and a last ``and``."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _share(slo: Slo) -> str:
    return f"{100.0 * float(slo.attainment):g}%"


def _ties(result: PlanResult) -> list[str]:
    labels = [r.deployment.label for r in result.deployments if r.tied]
    if len(labels) < 2:
        return []
    more = len(labels) - _LISTED_TIES
    shown = ", ".join(labels[:_LISTED_TIES]) + (f" and {more} more" if more > 0 else "")
    return [f"Cannot be told apart (goodput within {TIE:.0%}, marked *): {shown}."]
