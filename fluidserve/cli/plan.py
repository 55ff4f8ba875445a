"""``fluidserve plan``."""

import contextlib
import dataclasses
import time
from collections.abc import Iterable, Iterator
from typing import Any

from fluidserve import runtime
from fluidserve.cli.files import check_files, write_files
from fluidserve.cli.output import note, print_answer, print_json, progress
from fluidserve.errors import InputError, NoFeasibleDeployment
from fluidserve.io.load import build_problems, load_inputs, resolved
from fluidserve.io.schema import Inputs
from fluidserve.io.traffic import asked_rate
from fluidserve.problem import Problem
from fluidserve.report.kinds import kinds_parts
from fluidserve.report.plots.figure import plot_plan
from fluidserve.report.sentences import crosscheck_sentences, explain, question_sentence
from fluidserve.report.tables import crosscheck_table, plan_table, replay_table
from fluidserve.report.traffic import replay_sentences, traffic_json, traffic_sentences
from fluidserve.results import PlanResult
from fluidserve.search.aggregated import Candidates
from fluidserve.search.plan import grids_of, plan
from fluidserve.verify.crosscheck import crosscheck, replay, with_check, with_neighbours

DEFAULT_VERIFY = 3
_WORTH_TELLING = 2.0


def run(flags: dict[str, Any]) -> None:
    """Answers the question of the flags.

    Raises:
      InputError: wrong input.
      NoFeasibleDeployment: nothing answers it.
    """
    inputs = load_inputs(flags, flags.pop("config"))
    budget = inputs.budget
    check_files(inputs)
    runtime.enable_cache()
    runtime.set_precision("f32")
    problems, notes = build_problems(inputs)
    for text in notes:
        note(text)
    if inputs.offline:
        from fluidserve.cli.offline import run_offline

        run_offline(inputs, problems)
        return
    rate = asked_rate(inputs, problems[0].workload)
    progress(f"scoring deployments of up to {budget} GPUs ...")
    if len(problems) > 1:
        from fluidserve.cli.compare import run_comparison

        run_comparison(inputs, problems, rate)
        return
    problem = problems[0]
    with nothing_as_json(inputs, problem):
        result = plan(
            problem,
            budget=budget,
            rate=rate,
            fewest=inputs.fewest,
            top=inputs.top,
            kinds=inputs.kinds,
            token_budgets=inputs.token_budgets,
        )
    if result.seconds > _WORTH_TELLING:
        note(f"scored {result.candidates:,} candidates in {result.seconds:.1f} s")
    result = verified(problem, result, verify_count(inputs))
    rows = result.deployments
    write_files(
        inputs, rows, lambda path: plot_plan(path, problem, compared(inputs, problem), rows[0])
    )
    if inputs.as_json:
        _print_json(inputs, problem, result)
    else:
        print_answer(answer_parts(problem, result))


def compared(inputs: Inputs, problem: Problem) -> Iterable[Candidates]:
    """The candidates of each kind that a plan compares."""
    return grids_of(problem, inputs.budget, inputs.kinds, inputs.token_budgets).values()


def profile_json(problem: Problem) -> dict[str, Any]:
    """The profile as the JSON answers show it."""
    profile = problem.engine.profile
    return {
        "name": profile.name,
        "description": profile.description,
        "provenance": profile.provenance(problem.gpu.name),
        "measured": profile.measured(problem.gpu.name),
    }


@contextlib.contextmanager
def nothing_as_json(inputs: Inputs, problem: Problem) -> Iterator[None]:
    """Prints an answer without deployments, where JSON was asked for, when nothing is feasible."""
    began = time.perf_counter()
    try:
        yield
    except NoFeasibleDeployment as error:
        if inputs.as_json:
            print_json(
                {
                    "inputs": resolved(inputs, problem),
                    "profile": profile_json(problem),
                    "traffic": traffic_json(problem),
                    **nothing_json(error, time.perf_counter() - began),
                }
            )
        raise


def nothing_json(error: NoFeasibleDeployment, seconds: float) -> dict[str, Any]:
    """What the JSON answers say where nothing is feasible."""
    return {
        "candidates": error.candidates,
        "seconds": seconds,
        "deployments": [],
        "reasons": error.reasons,
        "nearest": error.nearest,
    }


def screening_json(result: PlanResult) -> dict[str, Any] | None:
    """How the candidates were picked, as the JSON answers show it."""
    return dataclasses.asdict(result.screening) if result.screening else None


def verify_count(inputs: Inputs) -> int:
    """How many deployments of a plan to simulate."""
    return DEFAULT_VERIFY if inputs.verify is None else inputs.verify


def verified(problem: Problem, result: PlanResult, most: int) -> PlanResult:
    """The result with its first `most` deployments simulated."""
    rows = list(result.deployments)
    count = min(most, len(rows))
    for i in range(count):
        progress(f"simulating {rows[i].deployment.label} ({i + 1} of {count}) ...")
        try:
            rows[i] = with_check(rows[i], crosscheck(problem, rows[i]))
        except InputError as error:
            note(f"{rows[i].deployment.label} is not cross-checked: {error}")
            continue
        rows[i] = dataclasses.replace(rows[i], replayed=replay(problem, rows[i]))
    return dataclasses.replace(result, deployments=with_neighbours(rows))


def answer_parts(problem: Problem, result: PlanResult) -> list[Any]:
    """The tables and sentences of a plan."""
    rows = result.deployments
    parts = [
        question_sentence(problem),
        *traffic_sentences(
            problem, rate_given=result.rate is not None or result.concurrency is not None
        ),
        plan_table(rows, problem.slo),
        *kinds_parts(problem, result),
        *explain(problem, result),
    ]
    if any(r.simulated is not None for r in rows):
        parts += [crosscheck_table(rows, problem.slo), *crosscheck_sentences(result)]
    if any(r.replayed is not None for r in rows):
        parts += [replay_table(rows), *replay_sentences(problem, rows)]
    return parts


def _print_json(inputs: Inputs, problem: Problem, result: PlanResult) -> None:
    print_json(
        {
            "inputs": resolved(inputs, problem),
            "profile": profile_json(problem),
            "traffic": traffic_json(problem),
            "horizon": problem.horizon,
            "candidates": result.candidates,
            "screening": screening_json(result),
            "seconds": result.seconds,
            "deployments": [row.to_json() for row in result.deployments],
            "best_of_kind": {kind: row.to_json() for kind, row in result.best_of_kind.items()},
            "failed_kinds": result.failed_kinds,
        }
    )
