"""What an answer says about its traffic: rates, refused requests, bursts and the prefix cache."""

import math
from collections.abc import Sequence
from typing import Any

from fluidserve.problem import Problem
from fluidserve.report.numbers import three_digits
from fluidserve.results import DeploymentResult
from fluidserve.specs.lengths import share_longer
from fluidserve.specs.slo import joint_limits, limits_of
from fluidserve.specs.workload import Workload
from fluidserve.status import DOUBT_TEXT, Doubt


def traffic_sentences(problem: Problem, *, rate_given: bool) -> list[str]:
    """Rates of the traffic, what is refused of it and what a prefix cache could find."""
    workload = problem.workload
    whole = workload.whole or workload
    sentences = []
    if math.isfinite(float(whole.rate)):
        sentences.append(_rates(workload, whole, rate_given=rate_given))
    if workload.refused:
        sentences.append(
            f"Refused: {float(workload.refused):.2%} of the requests are longer than "
            f"{problem.engine.max_model_len:,} tokens, prompt and output together. They count "
            "neither as served nor as missed: rates, attainment and goodput are those of the rest."
        )
    sentences += _beyond_the_model(problem)
    if problem.prefix_hit is None and math.isfinite(float(workload.prefix_bound)):
        bound = float(workload.prefix_bound)
        sentences.append(
            f"Prefix cache: none is planned for. An unlimited one would find {bound:.1%} of the "
            f"prompt tokens; --prefix-hit {bound:.3f} plans with that upper bound."
        )
    return sentences


def traffic_json(problem: Problem) -> dict[str, Any]:
    """The traffic as the JSON answers show it."""
    workload = problem.workload
    whole = workload.whole or workload
    peaks = (whole.peak_60s, whole.peak_10s)
    peak_60s, peak_10s = (math.nan if p is None else float(p.rate) for p in peaks)
    return {
        "mean_rate": float(whole.rate),
        "peak_60s": peak_60s,
        "peak_10s": peak_10s,
        "arrival_cv": math.sqrt(float(whole.arrival_scv)),
        "dispersion_60s": float(whole.dispersion),
        "refused_share": float(workload.refused),
        "longer_share": share_longer(workload.lengths, problem.model.max_positions),
        "prefix_hit_bound": float(workload.prefix_bound),
    }


def prefix_sentences(problem: Problem) -> list[str]:
    """What a prefix cache is taken to do, and traffic that would do it; none without a cache."""
    hit = problem.prefix_hit
    if hit is None:
        return []
    n_in, n_out = (round(n) for n in problem.mean_lengths)
    shared = min(round(hit * n_in), n_in - 1)
    return [
        f"Prefix cache: {hit:.1%} of every prompt is taken as found in it, so that prefill reads "
        "the KV of that share and computes the rest; memory and hand-over are those of whole "
        "prompts.",
        f"To measure this hit rate, let all prompts of a benchmark begin alike: {shared:,} tokens "
        f"in common and {n_in - shared:,} of their own (vllm bench serve --dataset-name random "
        f"--random-prefix-len {shared} --random-input-len {n_in - shared} --random-output-len "
        f"{n_out}). A benchmark without them measures no cache.",
    ]


def burst_sentences(problem: Problem, row: DeploymentResult) -> list[str]:
    """What to believe where arrivals are too irregular for the formulas; none otherwise."""
    if DOUBT_TEXT[Doubt.BURSTY_ARRIVALS] not in row.reasons:
        return []
    workload = problem.workload
    cv = math.sqrt(float(workload.arrival_scv))
    doubt = (
        "The formulas know gaps only as independent ones: their goodput and latencies are a first "
        "ranking, no promise."
    )
    if workload.whole is not None:
        whole, shortest = workload.whole, workload.whole.peak_10s
        text = f"BURSTY: even inside the busiest window gaps have a cv of {cv:.3g}. {doubt}"
        if shortest is not None and float(workload.rate) < float(shortest.rate):
            text += " A shorter one (--rate-of peak-10s) may be steadier."
        if len(whole.arrivals):
            text += " The replay is of the recording itself: believe it."
        return [text]
    text = (
        f"BURSTY: gaps between arrivals have a cv of {cv:.3g}, counts per minute vary "
        f"{float(workload.dispersion):.3g} times as much as Poisson traffic's. {doubt}"
    )
    recorded = bool(len(workload.arrivals))
    if recorded:
        text += " The simulator replays the recorded arrivals, scaled to each rate: believe it."
    else:
        text += " There is no recording to replay."
    if workload.peak_10s is not None:
        text += " --rate-of peak-10s plans for the busiest 10 s as if they lasted"
        text += ", and replays the recording at its own speed." if recorded else "."
    return [text]


def replay_sentences(problem: Problem, rows: Sequence[DeploymentResult]) -> list[str]:
    """Whether the recording itself is served by what was planned for its busiest window."""
    replayed = [(r, r.replayed) for r in rows if r.replayed is not None]
    if not replayed:
        return []
    short = [r.deployment.label for r, found in replayed if not found.kept]
    rate, requests = replayed[0][1].rate, replayed[0][1].requests
    text = (
        f"Replay: {requests:,} recorded requests at their own speed, {three_digits(rate)} "
        f"requests/s on average. "
    )
    if len(joint_limits(problem.slo)) == len(limits_of(problem.slo)) == 2:
        target = 100.0 * float(problem.slo.attainment)
        kept, missed = f"At least {target:g}% of them meet both limits", "Too few meet both limits"
    else:
        kept, missed = "The limits hold for them", "The limits do not hold"
    if not short:
        return [f"{text}{kept}."]
    return [f"{text}{missed} on {', '.join(short)}: plan for a higher rate."]


def _beyond_the_model(problem: Problem) -> list[str]:
    """What the longest context of the model means for the requests."""
    model, asked = problem.model, problem.engine.max_model_len
    longer = share_longer(problem.workload.lengths, model.max_positions)
    if not longer:
        return []
    built = f"the {model.max_positions:,} tokens that {model.name} was built for"
    text = f"Long: {longer:.2%} of the requests exceed {built}, prompt and output together. They "
    text += "are planned for all the same"
    return [text + (f"; --max-model-len {model.max_positions} refuses them." if not asked else ".")]


def _rates(workload: Workload, whole: Workload, *, rate_given: bool) -> str:
    """Mean rate and peaks, and which of them is planned for."""
    peaks = [p for p in (whole.peak_60s, whole.peak_10s) if p is not None]
    parts = [f"{three_digits(float(whole.rate))} requests/s on average"]
    for peak in peaks:
        window = f"{float(peak.window):.3g} s"
        parts.append(f"{three_digits(float(peak.rate))} over the busiest {window}")
    text = f"Traffic: {', '.join(parts)}."
    if workload.whole is not None:
        cv = math.sqrt(float(workload.arrival_scv))
        return (
            f"{text} Planned for {three_digits(float(workload.rate))} requests/s, as in the "
            f"busiest window and as if it lasted (cv {cv:.3g} between arrivals)."
        )
    return text if rate_given else f"{text} --rate-of mean, peak-60s or peak-10s plans for one."
