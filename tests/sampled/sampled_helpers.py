"""Deployments that the tests of sampled engines share."""

import dataclasses

import jax
import numpy as np

from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.problem import Problem, engine_for
from fluidserve.specs.applications import find_application
from fluidserve.specs.deployment import parse_label
from fluidserve.specs.slo import Slo
from fluidserve.timing.profile import load_profile


def problem_of(profile, workload="chatbot", slo=None, **engine):
    """OPT-13B on A100 with paper times, or Llama-3.1-70B on H100 with those of a profile."""
    paper = profile == "paper"
    gpu = find_gpu("A100" if paper else "H100")
    return Problem(
        model=find_model("OPT-13B" if paper else "Llama-3.1-70B"),
        gpu=gpu,
        workload=find_application(workload) if isinstance(workload, str) else workload,
        slo=slo or Slo(ttft=0.25, tpot=0.1),
        engine=engine_for(load_profile(profile), gpu, **engine),
    )


def system_of(problem, label):
    """One deployment."""
    return problem.system(parse_label(label, gpu=problem.gpu.name))


def varied(system, **leaves):
    """A batch of deployments that differ in some leaves; ``kv_capacity`` is the instance's."""
    capacity = np.asarray(leaves.pop("kv_capacity", system.instance.kv_capacity), float)
    instance = dataclasses.replace(system.instance, kv_capacity=capacity)
    return dataclasses.replace(system, instance=instance, **leaves)


def one_of(system, index):
    """A deployment of a batch, its leaves plain numbers."""
    return jax.tree.map(lambda x: float(np.asarray(x)[index]) if np.ndim(x) else float(x), system)
