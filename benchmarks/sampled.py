"""Speed of goodput on sampled traces, as a Markdown table.

``python benchmarks/sampled.py`` takes a few minutes on two cores. A solve is the goodput of one
deployment on one trace of 2,000 requests, from a guess that is 15 % off (lognormal). Compile time
stands apart; the last column is processor time, which other programs disturb less.
"""

import dataclasses
import os
import platform
import time
from typing import NamedTuple

import jax
import numpy as np

from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.problem import Problem, engine_for
from fluidserve.sampled.goodput import goodput
from fluidserve.sampled.trace import SEEDS, draw_trace
from fluidserve.specs.applications import find_application
from fluidserve.specs.deployment import parse_label
from fluidserve.specs.slo import Slo
from fluidserve.timing.instance import AggregatedSystem, Instance, System
from fluidserve.timing.profile import load_profile


class Row(NamedTuple):
    """What is timed.

    Attributes:
      what: in words.
      label: of the deployments.
      profile: of the step times.
      count: deployments.
    """

    what: str
    label: str
    profile: str
    count: int


ROWS = (
    Row("chunked", "1S tp{} b512", "paper", 256),
    Row("prompts first", "1C tp{}", "paper", 256),
    Row("chunked", "1S tp{} b512", "default", 256),
    Row("prompts first", "1C tp{}", "default", 256),
    Row("chunked, 4 instances", "4S tp{} b512", "default", 64),
    Row("disaggregated", "1P1D tp{}/tp{}", "default", 256),
    Row("disaggregated", "4P2D tp{}/tp{}", "default", 64),
)
MODELS = {
    "paper": (("OPT-13B", 1), ("OPT-13B", 2), ("OPT-66B", 4)),
    "default": (("Llama-3.1-8B", 1), ("Qwen2.5-14B", 1), ("Llama-3.1-70B", 4)),
}


def deployments(row: Row) -> tuple[System | AggregatedSystem, Slo, np.ndarray]:
    """A batch of deployments for chat, with limits and rough rates."""
    gpu, rng = find_gpu("A100" if row.profile == "paper" else "H100"), np.random.default_rng(0)
    systems, ttft, tpot, rates = [], [], [], []
    for _ in range(row.count):
        model, tp = MODELS[row.profile][rng.integers(3)]
        problem = Problem(
            model=find_model(model),
            gpu=gpu,
            workload=find_application("chatbot"),
            slo=Slo(),
            engine=engine_for(load_profile(row.profile), gpu),
        )
        system = problem.system(parse_label(row.label.replace("{}", str(tp)), gpu=gpu.name))
        if isinstance(system, AggregatedSystem) and system.token_budget is not None:
            budget = float(rng.choice([256, 512, 1024, 2048]))
            system = dataclasses.replace(system, token_budget=budget)
        instance: Instance = system.prefill if isinstance(system, System) else system.instance
        prompt, step = float(instance.prefill_time(1000.0)), float(instance.decode_time(1.0, 600.0))
        systems.append(system)
        ttft.append(step + prompt * rng.uniform(2.0, 20.0))
        tpot.append(step * rng.uniform(1.6, 5.0))
        rates.append(0.3 / prompt)
    slo = Slo(ttft=np.array(ttft), tpot=np.array(tpot))
    return jax.tree.map(lambda *x: np.array(x), *systems), slo, np.array(rates)


def main() -> None:
    """Prints the table."""
    print(f"Python {platform.python_version()}, jax {jax.__version__}, {os.cpu_count()} CPUs\n")
    print("| deployments | profile | first call s | solves/s | per processor second |")
    print("|---|---|---|---|---|")
    workload, rng = find_application("chatbot"), np.random.default_rng(1)
    traces = [draw_trace(workload, seed=seed) for seed in SEEDS[:2]]
    for row in ROWS:
        system, slo, rough = deployments(row)
        began = time.perf_counter()
        found = goodput(system, slo, traces, guess=rough)
        first = time.perf_counter() - began
        value = np.where(found.value > 0.0, found.value, rough)
        guess = value * np.exp(rng.normal(0.0, 0.15, len(value)))
        wall, cpu = time.perf_counter(), time.process_time()
        goodput(system, slo, traces, guess=guess)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        solves = row.count * len(traces)
        print(
            f"| {row.count} {row.what} | {row.profile} | {first:.1f} | {solves / wall:.0f} | "
            f"{solves / cpu:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
