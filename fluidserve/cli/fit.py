"""``fluidserve fit``."""

from typing import Any

from fluidserve.cli.output import note, print_answer, print_json
from fluidserve.errors import InputError
from fluidserve.io.catalog import find_model
from fluidserve.io.fit_inputs import FitInputs
from fluidserve.io.load import find_gpus, load_fit_inputs
from fluidserve.report.fit import fit_sentences, fit_table
from fluidserve.search.fit import Fit, Question, fits, nothing_holds, smallest
from fluidserve.timing.profile import load_profile


def run(flags: dict[str, Any]) -> None:
    """Says which instances hold the model and the requests of the flags.

    Raises:
      InputError: wrong input.
      NoFeasibleDeployment: no instance of so many GPUs holds them.
    """
    inputs = load_fit_inputs(flags, flags.pop("config"))
    question = _question(inputs)
    if question.context > question.model.max_positions:
        note(
            f"{question.model.name} was built for {question.model.max_positions:,} tokens at "
            f"most; the context is {question.context:,}"
        )
    most = inputs.gpus or question.gpu.gpus_per_node
    found = fits(question, most)
    best = smallest(found, inputs.users)
    failure = None if best else nothing_holds(question, found, inputs.users)
    if inputs.as_json:
        nothing = {"reasons": failure.reasons, "nearest": failure.nearest} if failure else {}
        print_json(
            {
                "inputs": _understood(inputs, question, most),
                "measured": question.profile.measured(question.gpu.name),
                "best": _as_json(best, inputs.users) if best else None,
                "instances": [_as_json(fit, inputs.users) for fit in found],
                **nothing,
            }
        )
    elif best is not None:
        print_answer([fit_table(found, best), *fit_sentences(question, best, inputs.users, most)])
    if failure is not None:
        raise failure


def _question(inputs: FitInputs) -> Question:
    gpus = find_gpus(inputs.gpu, inputs.gpu_spec)
    if len(gpus) > 1:
        raise InputError(f"--gpu: {inputs.gpu!r} names {len(gpus)} GPUs; fit takes one")
    model = find_model(inputs.model, inputs.weight_dtype, inputs.kv_dtype)
    profile = load_profile(inputs.profile)
    return Question(
        model=model,
        gpu=gpus[0],
        profile=profile,
        utilization=inputs.memory_utilization or profile.memory_utilization,
        context=inputs.context or model.max_positions,
    )


def _understood(inputs: FitInputs, question: Question, most: int) -> dict[str, Any]:
    """The inputs as they were understood."""
    return {
        "model": question.model.name,
        "gpu": question.gpu.name,
        "gpu_spec": inputs.gpu_spec,
        "gpus": most,
        "context": question.context,
        "users": inputs.users,
        "profile": question.profile.name,
        "weight_dtype": question.model.weight_dtype,
        "kv_dtype": question.model.kv_dtype,
        "memory_utilization": question.utilization,
    }


def _as_json(fit: Fit, users: int) -> dict[str, Any]:
    return {
        "tp": fit.tp,
        "pp": fit.pp,
        "gpus": fit.gpus,
        "memory_bytes_per_gpu": fit.memory_bytes,
        "weight_bytes_per_gpu": fit.weight_bytes,
        "free_bytes_per_gpu": fit.free_bytes,
        "kv_tokens": fit.kv_tokens,
        "concurrency": fit.concurrency,
        "users": fit.users,
        "fits": fit.users >= users,
    }
