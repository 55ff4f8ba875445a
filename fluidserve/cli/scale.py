"""``fluidserve scale``."""

from typing import Any

from fluidserve.cli.output import print_answer, print_json, progress
from fluidserve.cli.plan import nothing_as_json, profile_json, verify_count
from fluidserve.cli.question import named_deployments, start
from fluidserve.errors import InputError
from fluidserve.io.load import load_inputs, resolved
from fluidserve.io.schema import Inputs
from fluidserve.problem import Problem
from fluidserve.report.scale import scale_sentences, scale_table
from fluidserve.report.sentences import profile_sentence, question_sentence
from fluidserve.report.traffic import traffic_json, traffic_sentences
from fluidserve.results import ScaleResult
from fluidserve.search.aggregated import Candidates
from fluidserve.search.plan import grid_for, grids_of
from fluidserve.search.tightest import tightest
from fluidserve.specs.deployment import Kind
from fluidserve.verify.scale import with_simulated_scale


def run(flags: dict[str, Any]) -> None:
    """Answers how tight the limits can be.

    Raises:
      InputError: wrong input.
      NoFeasibleDeployment: nothing carries the rate, or a deployment does not fit.
    """
    inputs = load_inputs(flags, flags.pop("config"))
    if inputs.concurrency is not None or inputs.horizon is not None:
        raise InputError(
            "--concurrency and --horizon: an SLO scale is of steady state at a rate; leave them out"
        )
    if not inputs.rates_per_gpu:
        raise InputError("give --rates-per-gpu R, the requests/s that each GPU gets")
    if inputs.gpus is None and inputs.deployment is None:
        raise InputError("give --gpus N for the best of each kind within N GPUs, or --deployment")
    problem = start(inputs)
    with nothing_as_json(inputs, problem):
        found = {rate: _rows(inputs, problem, rate) for rate in inputs.rates_per_gpu}
    if inputs.as_json:
        print_json(
            {
                "inputs": resolved(inputs, problem),
                "profile": profile_json(problem),
                "traffic": traffic_json(problem),
                "scales": [
                    {"rate_per_gpu": rate, "deployments": [row.to_json() for row in rows]}
                    for rate, rows in found.items()
                ],
            }
        )
        return
    parts: list[Any] = [
        question_sentence(problem),
        *traffic_sentences(problem, rate_given=True),
    ]
    for rate, rows in found.items():
        parts += [scale_table(rows, problem.slo), *scale_sentences(rows, rate)]
    print_answer([*parts, profile_sentence(problem)])


def _rows(inputs: Inputs, problem: Problem, rate_per_gpu: float) -> list[ScaleResult]:
    """The deployments that were named, or the tightest of each kind, tightest first."""
    count = verify_count(inputs)
    if inputs.deployment is not None:
        rows: list[ScaleResult] = []
        for deployment in named_deployments(problem, inputs):
            grid: dict[Kind, Candidates] = {deployment.kind: grid_for(problem, deployment)}
            found = tightest(problem, grid, rate_per_gpu, budget=deployment.gpus)
            rows += found[deployment.kind]
        return _simulated(problem, rows, count)
    assert inputs.gpus is not None
    progress(f"searching scales of deployments of up to {inputs.gpus} GPUs ...")
    grids = grids_of(problem, inputs.gpus, inputs.kinds, inputs.token_budgets)
    found = tightest(problem, grids, rate_per_gpu, budget=inputs.gpus, top=max(count, 1))
    best = [
        min(_simulated(problem, rows, count), key=lambda row: row.scale) for rows in found.values()
    ]
    return sorted(best, key=lambda row: row.scale)


def _simulated(problem: Problem, rows: list[ScaleResult], count: int) -> list[ScaleResult]:
    """Rows with the word of the event simulator, where any is wanted."""
    if not count:
        return rows
    done = []
    for row in rows:
        progress(f"simulating {row.deployment.label} ...")
        done.append(with_simulated_scale(problem, row))
    return done
