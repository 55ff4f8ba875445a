"""``fluidserve plan``."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from fluidserve import runtime
from fluidserve.cli.output import note, print_answer, print_json, progress
from fluidserve.errors import InputError, NoFeasibleDeployment
from fluidserve.io.export import check_writable, write_csv
from fluidserve.io.load import build_problem, load_inputs, resolved
from fluidserve.io.schema import Inputs
from fluidserve.problem import Problem
from fluidserve.report.plots.figure import check_plot, plot_plan
from fluidserve.report.sentences import crosscheck_sentences, explain, question_sentence
from fluidserve.report.tables import crosscheck_table, plan_table
from fluidserve.results import PlanResult
from fluidserve.search.plan import plan
from fluidserve.verify.crosscheck import crosscheck, with_check, with_neighbours

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
    if inputs.csv is not None:
        check_writable(inputs.csv)
    if inputs.plot is not None:
        check_plot(inputs.plot)
    runtime.enable_cache()
    runtime.set_precision("f32")
    problem, notes = build_problem(inputs)
    for text in notes:
        note(text)
    progress(f"scoring deployments of up to {budget} GPUs ...")
    with nothing_as_json(inputs, problem):
        result = plan(problem, budget=budget, rate=inputs.rate, top=inputs.top)
    if result.seconds > _WORTH_TELLING:
        note(f"scored {result.candidates:,} candidates in {result.seconds:.1f} s")
    result = _verified(problem, result, inputs)
    if inputs.csv is not None:
        write_csv(inputs.csv, result.deployments)
        note(f"wrote {len(result.deployments)} deployments to {inputs.csv}")
    if inputs.plot is not None:
        progress(f"drawing {inputs.plot} ...")
        plot_plan(inputs.plot, problem, budget, result.deployments[0])
        note(f"drew {inputs.plot}")
    if inputs.as_json:
        _print_json(inputs, problem, result)
    else:
        _print_answer(problem, result)


def profile_json(problem: Problem) -> dict[str, Any]:
    """The profile as the JSON answers show it."""
    profile = problem.engine.profile
    return {
        "name": profile.name,
        "description": profile.description,
        "provenance": profile.provenance(problem.gpu.name),
    }


@contextlib.contextmanager
def nothing_as_json(inputs: Inputs, problem: Problem) -> Iterator[None]:
    """Prints an answer without deployments, where JSON was asked for, when nothing is feasible."""
    try:
        yield
    except NoFeasibleDeployment as error:
        if inputs.as_json:
            print_json(
                {
                    "inputs": resolved(inputs, problem),
                    "profile": profile_json(problem),
                    "deployments": [],
                    "reasons": error.reasons,
                    "nearest": error.nearest,
                }
            )
        raise


def _verified(problem: Problem, result: PlanResult, inputs: Inputs) -> PlanResult:
    """The result with its first deployments simulated."""
    verify = DEFAULT_VERIFY if inputs.verify is None else inputs.verify
    rows = list(result.deployments)
    count = min(verify, len(rows))
    for i in range(count):
        progress(f"simulating {rows[i].deployment.label} ({i + 1} of {count}) ...")
        try:
            rows[i] = with_check(rows[i], crosscheck(problem, rows[i]))
        except InputError as error:
            note(f"{rows[i].deployment.label} is not cross-checked: {error}")
    return dataclasses.replace(result, deployments=with_neighbours(rows))


def _print_answer(problem: Problem, result: PlanResult) -> None:
    rows = result.deployments
    parts = [question_sentence(problem), plan_table(rows), *explain(problem, result)]
    if any(r.simulated is not None for r in rows):
        parts += [crosscheck_table(rows), *crosscheck_sentences(result)]
    print_answer(parts)


def _print_json(inputs: Inputs, problem: Problem, result: PlanResult) -> None:
    print_json(
        {
            "inputs": resolved(inputs, problem),
            "profile": profile_json(problem),
            "candidates": result.candidates,
            "seconds": result.seconds,
            "deployments": [row.to_json() for row in result.deployments],
        }
    )
