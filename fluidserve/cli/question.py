"""What commands on a single question begin with."""

from fluidserve import runtime
from fluidserve.cli.output import note
from fluidserve.errors import InputError, NoFeasibleDeployment
from fluidserve.io.load import build_problem
from fluidserve.io.schema import Inputs
from fluidserve.problem import Problem
from fluidserve.search.grid import misfit
from fluidserve.specs.deployment import Deployment, parse_label


def start(inputs: Inputs) -> Problem:
    """The question of the inputs, noted on standard error; prepares JAX for it.

    Raises:
      InputError: wrong input.
    """
    runtime.enable_cache()
    runtime.set_precision("f32")
    problem, notes = build_problem(inputs)
    for text in notes:
        note(text)
    return problem


def named_deployments(problem: Problem, inputs: Inputs) -> list[Deployment]:
    """The deployments of ``--deployment``, separated by commas.

    Raises:
      InputError: a label that is none, or a deployment that cannot be built.
      NoFeasibleDeployment: one that does not fit.
    """
    labels = str(inputs.deployment).split(",")
    found = [parse_label(label, gpu=problem.gpu.name) for label in labels]
    for deployment in found:
        check_deployment(problem, deployment, inputs)
    return found


def check_deployment(problem: Problem, deployment: Deployment, inputs: Inputs) -> None:
    """Refuses a deployment that cannot be built.

    Raises:
      InputError: tp or pp that do not divide the model or the node, or more GPUs than the budget.
      NoFeasibleDeployment: the model or a request does not fit into the memory.
    """
    for role, pool in deployment.pools.items():
        instance = problem.instance(pool.tp, pool.pp)
        reason = misfit(problem, instance, tp=pool.tp, pp=pool.pp)
        if reason.startswith(("tp=", "pp=")):
            raise InputError(f"--deployment {deployment.label}: {role} {reason}")
        if reason:
            raise NoFeasibleDeployment(
                f"{problem.model.name} on the {role} instance of {deployment.label}: {reason}"
            )
    budget = inputs.gpus or inputs.max_gpus
    if budget is not None and deployment.gpus > budget:
        raise InputError(
            f"--deployment {deployment.label} takes {deployment.gpus} GPUs; the budget is {budget}"
        )
