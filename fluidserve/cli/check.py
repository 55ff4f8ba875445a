"""``fluidserve check``."""

from typing import Any

from fluidserve.cli.output import note, print_answer, print_json
from fluidserve.cli.question import check_deployment
from fluidserve.io.describe import describe_model
from fluidserve.io.load import build_problem, load_inputs, resolved
from fluidserve.report.sentences import model_sentence, profile_sentence, question_sentence
from fluidserve.report.tables import pairs_table
from fluidserve.report.traffic import traffic_json, traffic_sentences
from fluidserve.specs.deployment import parse_label


def run(flags: dict[str, Any]) -> None:
    """Validates the inputs of the flags and shows how they are understood.

    Raises:
      InputError: wrong input.
      NoFeasibleDeployment: the model does not fit into the deployment that was given.
    """
    inputs = load_inputs(flags, flags.pop("config"))
    problem, notes = build_problem(inputs)
    if inputs.deployment is not None:
        deployment = parse_label(inputs.deployment, gpu=problem.gpu.name)
        check_deployment(problem, deployment, inputs)
    else:
        _ = inputs.budget
    for text in notes:
        note(text)
    values = resolved(inputs, problem)
    if inputs.as_json:
        model = describe_model(problem.model)
        print_json({"inputs": values, "model": model, "traffic": traffic_json(problem)})
        return
    shown = {name: value for name, value in values.items() if value is not None}
    print_answer(
        [
            pairs_table(shown),
            "",
            "Times in s, rates in 1/s, bandwidth in B/s, lengths in tokens (means).",
            question_sentence(problem),
            model_sentence(problem.model),
            *traffic_sentences(problem, rate_given=values["rate"] is not None),
            profile_sentence(problem),
        ]
    )
