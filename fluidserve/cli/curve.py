"""``fluidserve curve``."""

import csv
from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidserve.cli.files import check_files
from fluidserve.cli.output import note, print_answer, print_json, progress
from fluidserve.cli.plan import nothing_as_json, profile_json, verify_count
from fluidserve.cli.question import named_deployments, start
from fluidserve.errors import InputError
from fluidserve.io.files import complete_file
from fluidserve.io.load import load_inputs, resolved
from fluidserve.io.schema import Inputs
from fluidserve.problem import Problem
from fluidserve.report.curves import curve_tables, curves_sentences, flat_points
from fluidserve.report.plots.curves import plot_curves
from fluidserve.report.sentences import profile_sentence, question_sentence
from fluidserve.report.traffic import traffic_json, traffic_sentences
from fluidserve.results import DeploymentResult
from fluidserve.search.plan import analyse, plan
from fluidserve.verify.crosscheck import requests_for
from fluidserve.verify.curves import Curve, curve_of, usual_rates

_IDLE = 1e-3


def run(flags: dict[str, Any]) -> None:
    """Draws the curves of the flags.

    Raises:
      InputError: wrong input.
      NoFeasibleDeployment: nothing serves, or a deployment does not fit.
    """
    inputs = load_inputs(flags, flags.pop("config"))
    if inputs.concurrency is not None:
        raise InputError("--concurrency: curves are over arrival rates; leave it out")
    budget = inputs.budget if inputs.deployment is None else None
    check_files(inputs)
    problem = start(inputs)
    with nothing_as_json(inputs, problem):
        rows = _rows(inputs, problem, budget)
    rates = np.array(inputs.rates) if inputs.rates else usual_rates(rows)
    curves = [_curve(inputs, problem, row, rates) for row in rows]
    _write(inputs, problem, curves)
    if inputs.as_json:
        print_json(
            {
                "inputs": resolved(inputs, problem),
                "profile": profile_json(problem),
                "traffic": traffic_json(problem),
                "curves": [curve.to_json() for curve in curves],
            }
        )
        return
    print_answer(
        [
            question_sentence(problem),
            *traffic_sentences(problem, rate_given=True),
            *curve_tables(curves),
            *curves_sentences(curves),
            profile_sentence(problem),
        ]
    )


def _rows(inputs: Inputs, problem: Problem, budget: int | None) -> list[DeploymentResult]:
    """The deployments that were named, or the best of each kind, at their goodput."""
    if budget is not None:
        progress(f"scoring deployments of up to {budget} GPUs ...")
        found = plan(
            problem,
            budget=budget,
            kinds=inputs.kinds,
            token_budgets=inputs.token_budgets,
            top=1,
        )
        return list(found.best_of_kind.values())
    rows = []
    for deployment in named_deployments(problem, inputs):
        idle = analyse(problem, deployment, _IDLE)
        rows.append(analyse(problem, deployment, None) if idle.goodput > 0 else idle)
    return rows


def _curve(inputs: Inputs, problem: Problem, row: DeploymentResult, rates: np.ndarray) -> Curve:
    points = verify_count(inputs)
    if points:
        progress(f"simulating {row.deployment.label} ...")
    asked = "requests" in inputs.model_fields_set
    requests = inputs.requests if asked else requests_for(problem, row)
    return curve_of(problem, row, rates, points=points, requests=requests)


def _write(inputs: Inputs, problem: Problem, curves: Sequence[Curve]) -> None:
    """Writes the files that were asked for."""
    if inputs.csv is not None:
        lines = [line for curve in curves for line in flat_points(curve)]
        with (
            complete_file(inputs.csv, "--csv") as temporary,
            temporary.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.DictWriter(file, fieldnames=list(lines[0]))
            writer.writeheader()
            writer.writerows(lines)
        note(f"wrote {len(lines)} points to {inputs.csv}")
    if inputs.plot is not None:
        plot_curves(inputs.plot, curves, problem.slo)
        note(f"drew {inputs.plot}")
