"""Deployments that the tests of sampled engines share."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from fluidserve import eventsim
from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.problem import Problem, engine_for
from fluidserve.sampled.latencies import Served
from fluidserve.sampled.serve import Program, program_for
from fluidserve.sampled.trace import draw_trace, rows_of
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


def trace_of(n=400, seed=3):
    """Chat with requests that leave with their first or second token."""
    drawn = draw_trace(find_application("chatbot"), seed=seed, requests=n)
    n_in, n_out = np.minimum(drawn.n_in, 2000), np.minimum(drawn.n_out, 500)
    n_out[::7] = 1
    n_out[3::11] = 2
    return dataclasses.replace(drawn, n_in=n_in, n_out=n_out)


@functools.cache
def _program(program: Program, dtype):
    """Compiled in haste, as it runs once or twice."""
    return jax.jit(program.serve, compiler_options={"xla_backend_optimization_level": 0})


def quickly_served(system, rates, trace) -> Served:
    """As `fluidserve.sampled.serve.serve`, where all requests fit."""
    shape = np.shape(rates)
    leaves = jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x, float), shape), (system, rates))
    program = _program(program_for(system, [trace]), jnp.zeros(()).dtype)
    served, _ = program(*leaves, rows_of(trace), trace.longest)
    return Served(*map(np.asarray, served))


def simulated(system, rates, trace) -> Served:
    """The same by the event simulator, one deployment after the other."""
    found = []
    for i, rate in enumerate(rates):
        records = eventsim.run(one_of(system, i), trace.arrival / rate, trace.n_in, trace.n_out)
        found.append((records.ttft, records.tpot, records.e2e))
    return Served(*(np.stack(x) for x in zip(*found, strict=True)))


def largest_difference(a: Served, b: Served) -> float:
    """Over all latencies of all requests, s."""
    return max(float(np.abs(x - y).max()) for x, y in zip(a, b, strict=True))
