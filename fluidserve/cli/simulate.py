"""``fluidserve simulate``."""

import dataclasses
from typing import Any

from fluidserve.cli.files import check_files, write_files
from fluidserve.cli.output import print_answer, print_json, progress
from fluidserve.cli.plan import nothing_as_json, profile_json
from fluidserve.cli.question import check_deployment, start
from fluidserve.errors import InputError
from fluidserve.eventsim import Summary
from fluidserve.io.load import load_inputs, resolved
from fluidserve.io.schema import Inputs
from fluidserve.io.traffic import asked_rate
from fluidserve.problem import Problem
from fluidserve.report.numbers import three_digits
from fluidserve.report.plots.figure import plot_deployment
from fluidserve.report.sentences import (
    confidence_sentence,
    limit_sentence,
    overload_sentence,
    profile_sentence,
    question_sentence,
    stall_sentences,
    users_sentence,
)
from fluidserve.report.tables import (
    crosscheck_table,
    latency_table,
    load_table,
    phases_table,
    replay_table,
)
from fluidserve.report.traffic import (
    burst_sentences,
    prefix_sentences,
    replay_sentences,
    traffic_json,
    traffic_sentences,
)
from fluidserve.results import DeploymentResult
from fluidserve.search.plan import analyse
from fluidserve.specs.deployment import parse_label
from fluidserve.verify.crosscheck import crosscheck, replay, with_check
from fluidserve.verify.served import Served, serve


def run(flags: dict[str, Any]) -> None:
    """Simulates the deployment of the flags.

    Raises:
      InputError: wrong input.
      NoFeasibleDeployment: the model does not fit, or no rate was given and none meets the SLO.
    """
    inputs = load_inputs(flags, flags.pop("config"))
    if inputs.deployment is None:
        raise InputError("--deployment must be given, for example --deployment '3P1D tp2/tp4'")
    check_files(inputs)
    problem = start(inputs)
    deployment = parse_label(inputs.deployment, gpu=problem.gpu.name)
    with nothing_as_json(inputs, problem):
        check_deployment(problem, deployment, inputs)
        row = analyse(problem, deployment, asked_rate(inputs, problem.workload))
    progress(f"simulating {deployment.label} with {inputs.requests:,} requests ...")
    found = serve(problem, deployment, row.rate, requests=inputs.requests, seed=inputs.seed)
    if inputs.verify:
        progress(f"searching the simulated goodput of {deployment.label} ...")
        row = with_check(row, crosscheck(problem, row))
        row = dataclasses.replace(row, replayed=replay(problem, row))
    write_files(inputs, [row], lambda path: plot_deployment(path, problem, row))
    if inputs.as_json:
        print_json(_as_json(inputs, problem, row, found))
    else:
        _print_answer(inputs, problem, row, found)


def _print_answer(
    inputs: Inputs,
    problem: Problem,
    row: DeploymentResult,
    found: Served,
) -> None:
    rate_given = asked_rate(inputs, problem.workload) is not None
    asked = "the rate asked for" if rate_given else "the goodput of the formulas"
    users = problem.workload.concurrency
    if users is not None:
        rate_given, asked = True, f"by the formulas, with {users:,} users"
    parts: list[Any] = [
        question_sentence(problem),
        *traffic_sentences(problem, rate_given=rate_given),
        f"{row.deployment.label}, {row.gpus} GPUs, at {three_digits(row.rate)} requests/s "
        f"({asked}); {_requests_phrase(problem, inputs, found.summary)}, seed {inputs.seed}",
        latency_table(row, found.summary, problem.slo),
        *stall_sentences(found.summary),
        phases_table(row, found.phases),
        load_table(row, found.summary, found.utilisation),
    ]
    overload = overload_sentence(row, problem.horizon)
    parts += [overload] if overload else []
    if users is not None:
        parts.append(users_sentence(problem, row))
    elif row.goodput > 0:
        parts.append(f"Goodput by the formulas: {three_digits(row.goodput)} requests/s.")
    parts += [limit_sentence(row), confidence_sentence(row), *burst_sentences(problem, row)]
    parts += [*prefix_sentences(problem), profile_sentence(problem)]
    if row.simulated is not None:
        parts.append(crosscheck_table([row], problem.slo))
    if row.replayed is not None:
        parts += [replay_table([row]), *replay_sentences(problem, [row])]
    print_answer(parts)


def gaps_json(summary: Summary) -> dict[str, Any]:
    """ITL, longest gaps and stalls; all None where gaps were not recorded."""
    gaps = summary.gaps
    return {
        "itl": dataclasses.asdict(gaps.itl) if gaps else None,
        "longest_gap": dataclasses.asdict(gaps.longest) if gaps else None,
        "stalled": gaps.stalled if gaps else None,
    }


def _requests_phrase(problem: Problem, inputs: Inputs, summary: Summary) -> str:
    """How many requests were simulated, and in how many runs."""
    if problem.horizon is None:
        return f"{inputs.requests:,} requests"
    runs = summary.requests // problem.horizon
    return f"{runs:,} runs of the first {problem.horizon:,} requests"


def _as_json(
    inputs: Inputs,
    problem: Problem,
    row: DeploymentResult,
    found: Served,
) -> dict[str, Any]:
    summary, use = found.summary, found.utilisation
    return {
        "inputs": resolved(inputs, problem),
        "profile": profile_json(problem),
        "traffic": traffic_json(problem),
        "rate": row.rate,
        "horizon": problem.horizon,
        "requests": inputs.requests if problem.horizon is None else summary.requests,
        "seed": inputs.seed,
        "stable": overload_sentence(row) == "",
        "simulation": {
            "attainment": summary.attainment.value,
            "attainment_interval": [summary.attainment.low, summary.attainment.high],
            "ttft": dataclasses.asdict(summary.ttft),
            "tpot": dataclasses.asdict(summary.tpot),
            "phases": dataclasses.asdict(found.phases),
            "e2e": dataclasses.asdict(summary.e2e),
            **gaps_json(summary),
            "throughput": summary.throughput,
            "utilization": {"prefill": use.prefill, "link": use.link, "decode": use.decode},
            "batch": use.decode_batch,
            "kv_use": use.decode_kv,
        },
        "deployments": [row.to_json()],
    }
