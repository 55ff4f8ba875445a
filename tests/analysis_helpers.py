"""Small instances and questions that the tests of the analysis share."""

import functools
import math

import jax

from fluidserve._pytree import pytree
from fluidserve._typing import Leaf, Number
from fluidserve.deploy.disaggregated import prepare
from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.problem import Problem, engine_for
from fluidserve.search.score import as_arrays
from fluidserve.specs.applications import find_application
from fluidserve.specs.deployment import parse_label
from fluidserve.specs.slo import Slo
from fluidserve.specs.workload import Workload
from fluidserve.timing.instance import Instance
from fluidserve.timing.model import AbstractTimeModel, Work
from fluidserve.timing.profile import load_profile

quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
"""Programs that a test runs a few times: compiling them dearly would not pay."""

jitted_prepare = quick_jit(prepare)


@pytree
class AffineTimes(AbstractTimeModel):
    """Time affine in new tokens and KV read, so that closed forms hold."""

    fixed: Leaf
    per_new: Leaf = 0.0
    per_kv: Leaf = 0.0

    def stage_time(self, work: Work) -> Number:
        return self.fixed + self.per_new * work.new + self.per_kv * work.kv_read


def affine_instance(fixed, per_new=0.0, per_kv=0.0, *, pp=1.0, kv_capacity=1e12) -> Instance:
    times = AffineTimes(fixed=fixed, per_new=per_new, per_kv=per_kv)
    return as_arrays(Instance(times=times, pp=pp, kv_capacity=kv_capacity))


def make_problem(
    model: str = "OPT-13B",
    gpu: str = "A100-SXM4-80GB",
    *,
    profile: str = "paper",
    workload: Workload | str = "chatbot",
    ttft: float = 0.25,
    tpot: float = 0.1,
    attainment: float = 0.9,
    link: float | None = math.inf,
    **engine,
) -> Problem:
    """A question; the defaults are the lecture's chatbot on OPT-13B."""
    found = find_gpu(gpu)
    return Problem(
        model=find_model(model),
        gpu=found,
        workload=find_application(workload) if isinstance(workload, str) else workload,
        slo=Slo(ttft=ttft, tpot=tpot, attainment=attainment),
        engine=engine_for(_profile(profile), found, link_bandwidth=link, **engine),
    )


@functools.cache
def _profile(name: str):
    return load_profile(name)


def inputs_of(problem: Problem, label: str):
    """System, bins, SLO and arrival variability of one deployment, as arrays."""
    system = problem.system(parse_label(label, gpu=problem.gpu.name))
    return as_arrays((system, problem.bins, problem.slo, problem.workload.arrival_scv))


def plan_of(problem: Problem, label: str):
    """One deployment, ready to be evaluated."""
    system, bins, _, arrival_scv = inputs_of(problem, label)
    return jitted_prepare(system, bins, arrival_scv)
