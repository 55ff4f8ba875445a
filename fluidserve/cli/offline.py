"""``fluidserve plan --offline``."""

import time

from fluidserve.cli.output import note, print_answer, print_json
from fluidserve.cli.plan import nothing_as_json, profile_json
from fluidserve.errors import InputError
from fluidserve.io.load import resolved
from fluidserve.io.schema import Inputs
from fluidserve.problem import Problem
from fluidserve.report.offline import offline_sentences, offline_table
from fluidserve.report.sentences import profile_sentence, question_sentence
from fluidserve.report.traffic import traffic_json
from fluidserve.search.offline import offline
from fluidserve.search.plan import absent_kinds, grids_of


def run_offline(inputs: Inputs, problems: list[Problem]) -> None:
    """Answers which deployment finishes most tokens per second without any limit.

    Raises:
      InputError: several GPUs.
      NoFeasibleDeployment: nothing fits.
    """
    if len(problems) > 1:
        raise InputError("--offline: takes one GPU; ask for each of them by itself")
    problem, began = problems[0], time.perf_counter()
    grids = grids_of(problem, inputs.budget, inputs.kinds, inputs.token_budgets)
    with nothing_as_json(inputs, problem):
        found = offline(problem, grids, budget=inputs.budget, top=inputs.top)
    seconds = time.perf_counter() - began
    candidates = sum(map(len, grids.values()))
    note(f"scored {candidates:,} candidates in {seconds:.1f} s")
    missing = absent_kinds(inputs.budget, inputs.kinds)
    best = {kind: rows[0] for kind, rows in found.items()}
    every = (row for rows in found.values() for row in rows)
    shown = sorted(every, key=lambda row: -row.rate)[: inputs.top]
    if inputs.as_json:
        print_json(
            {
                "inputs": resolved(inputs, problem),
                "profile": profile_json(problem),
                "traffic": traffic_json(problem),
                "offline": True,
                "candidates": candidates,
                "seconds": seconds,
                "deployments": [row.to_json() for row in shown],
                "best_of_kind": {kind: row.to_json() for kind, row in best.items()},
                "failed_kinds": missing,
            }
        )
        return
    shown += [row for row in best.values() if row not in shown]
    print_answer(
        [
            question_sentence(problem),
            offline_table(shown),
            *offline_sentences(best.values()),
            *(f"No {kind} deployment: {why}." for kind, why in missing.items()),
            profile_sentence(problem),
        ]
    )
