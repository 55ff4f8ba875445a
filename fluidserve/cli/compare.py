"""``fluidserve plan`` with several GPUs: the plan of each, side by side."""

import time
from collections.abc import Sequence
from typing import Any

from fluidserve.cli.files import write_files
from fluidserve.cli.output import note, print_answer, print_json, progress
from fluidserve.cli.plan import (
    answer_parts,
    compared,
    nothing_json,
    profile_json,
    screening_json,
    verified,
    verify_count,
)
from fluidserve.errors import NoFeasibleDeployment
from fluidserve.io.load import resolved
from fluidserve.io.schema import Inputs
from fluidserve.problem import Problem
from fluidserve.report.comparison import comparison_sentences, comparison_table
from fluidserve.report.plots.figure import plot_plan
from fluidserve.report.traffic import traffic_json
from fluidserve.search.compare import Comparison, compare


def run_comparison(inputs: Inputs, problems: Sequence[Problem], rate: float | None) -> None:
    """Answers one question about several accelerators.

    Args:
      inputs: the question.
      problems: the same on each accelerator.
      rate: to be served, 1/s; None for the most goodput.

    Raises:
      InputError: wrong input.
      NoFeasibleDeployment: nothing answers it on any of them.
    """
    by_name = {problem.gpu.name: problem for problem in problems}
    asked = resolved(inputs, problems[0]) | {"gpu": ",".join(by_name), "link": inputs.link}
    began = time.perf_counter()
    try:
        found = compare(
            problems,
            budget=inputs.budget,
            rate=rate,
            fewest=inputs.fewest,
            top=inputs.top,
            kinds=inputs.kinds,
            token_budgets=inputs.token_budgets,
        )
    except NoFeasibleDeployment as error:
        if inputs.as_json:
            print_json(
                {
                    "inputs": asked,
                    "traffic": traffic_json(problems[0]),
                    "by_gpu": [],
                    **nothing_json(error, time.perf_counter() - began),
                }
            )
        raise
    seconds = time.perf_counter() - began
    note(f"scored {found.candidates:,} candidates in {seconds:.1f} s")
    found = _verified(inputs, by_name, found)
    rows = found.deployments(inputs.top)
    winner = by_name[next(iter(found.plans))]
    write_files(
        inputs, rows, lambda path: plot_plan(path, winner, compared(inputs, winner), rows[0])
    )
    if inputs.as_json:
        print_json(
            {
                "inputs": asked,
                "profile": profile_json(winner),
                "traffic": traffic_json(winner),
                "candidates": found.candidates,
                "seconds": seconds,
                "by_gpu": [_one_json(problem, found) for problem in _in_order(by_name, found)],
                "deployments": [row.to_json() for row in rows],
            }
        )
        return
    every = _in_order(by_name, found)
    best = found.plans[winner.gpu.name]
    print_answer(
        [
            comparison_table(every, found),
            *comparison_sentences(every, found),
            "",
            *answer_parts(winner, best),
        ]
    )


def _verified(inputs: Inputs, problems: dict[str, Problem], found: Comparison) -> Comparison:
    """The best of each accelerator simulated first, then what is left of the count on the best."""
    left = verify_count(inputs)
    plans = {}
    beyond = max(left - len(found.plans), 0)
    for name, result in found.plans.items():
        count = min(left, 1) + (beyond if not plans else 0)
        progress(f"{name}: {count} to simulate")
        plans[name] = verified(problems[name], result, count)
        left -= min(left, 1)
    return Comparison(plans=plans, failures=found.failures, seconds=found.seconds)


def _in_order(problems: dict[str, Problem], found: Comparison) -> list[Problem]:
    return [problems[name] for name in (*found.plans, *found.failures)]


def _one_json(problem: Problem, found: Comparison) -> dict[str, Any]:
    """One accelerator of the comparison."""
    name = problem.gpu.name
    common = {"gpu": name, "link": problem.engine.link_bandwidth, "profile": profile_json(problem)}
    if name in found.failures:
        error = found.failures[name]
        return common | nothing_json(error, found.seconds[name]) | {"error": str(error)}
    result = found.plans[name]
    return common | {
        "candidates": result.candidates,
        "screening": screening_json(result),
        "seconds": found.seconds[name],
        "deployments": [row.to_json() for row in result.deployments],
    }
