"""Speed of planning, as a Markdown table: start-up, compilation, scoring, simulation.

``python benchmarks/speed.py`` takes about three minutes on two cores. Warm times are medians, and
compile time stands apart; whole processes start with the compilation cache empty (cold) or full.
"""

import functools
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import jax
import numpy as np

from fluidserve.eventsim import simulate
from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.problem import Problem, engine_for
from fluidserve.search.grid import disaggregated_grid
from fluidserve.search.score import question_of, score_grid
from fluidserve.specs.applications import find_application
from fluidserve.specs.deployment import parse_label
from fluidserve.specs.slo import Slo
from fluidserve.timing.profile import load_profile

SMALL = (
    "--model OPT-13B --gpu A100 --gpus 3 --app chatbot --ttft 250ms --tpot 100ms --profile paper"
)
LARGE = "--model Qwen3-32B --gpu H200 --gpus 32 --isl 4000 --osl 500 --ttft 300ms --tpot 10ms"


def seconds(work: Callable[[], object], *, repeat: int = 3) -> float:
    """Median wall time."""
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def command(arguments: str, cache: str) -> Callable[[], object]:
    """A whole run of the command line with its compilation cache in `cache`."""
    environment = os.environ | {"XDG_CACHE_HOME": cache}
    words = [sys.executable, "-m", "fluidserve", *arguments.split()]
    return lambda: subprocess.run(words, check=True, capture_output=True, env=environment)


def problem_for(profile: str) -> Problem:
    """Llama-3.1-70B chat on H100."""
    gpu = find_gpu("H100")
    return Problem(
        model=find_model("Llama-3.1-70B"),
        gpu=gpu,
        workload=find_application("chatbot"),
        slo=Slo(ttft=0.5, tpot=0.05, attainment=0.9),
        engine=engine_for(load_profile(profile), gpu),
    )


def main() -> None:
    """Prints the table."""
    print(f"Python {platform.python_version()}, jax {jax.__version__}, {os.cpu_count()} CPUs\n")
    print("| what | result |\n|---|---|")
    with tempfile.TemporaryDirectory() as cache:
        print(f"| `fluidserve --help` | {seconds(command('--help', cache)):.2f} s |")
    for name, question in (("OPT-13B on 3 A100", SMALL), ("Qwen3-32B on 32 H200", LARGE)):
        with tempfile.TemporaryDirectory() as cache:
            cold = seconds(command(f"plan {question} --verify 0", cache), repeat=1)
            warm = seconds(command(f"plan {question} --verify 0", cache))
            checked = seconds(command(f"plan {question} --verify 3", cache), repeat=1)
        print(
            f"| plan, {name}: cold / warm / warm with `--verify 3` | "
            f"{cold:.1f} / {warm:.1f} / {checked:.1f} s |"
        )
    for profile in ("paper", "default"):
        problem = problem_for(profile)
        question, sizes, times = question_of(problem), [], []
        for budget in (16, 64, 256):
            grid = disaggregated_grid(problem, budget)
            began = time.perf_counter()
            score_grid(grid, question)
            first = time.perf_counter() - began
            sizes.append(len(grid))
            times.append(seconds(functools.partial(score_grid, grid, question)))
            print(
                f"| goodput of {len(grid):,} deployments, {profile}, warm | {times[-1]:.2f} s, "
                f"{len(grid) / times[-1]:,.0f} per second (first call {first:.1f} s) |"
            )
        slope = np.polyfit(np.log(sizes[1:]), np.log(times[1:]), 1)[0]
        print(f"| slope of log time on log size above 10^4, {profile} | {slope:.2f} |")
    problem = problem_for("paper")
    system = problem.system(parse_label("4P1D tp2/tp4", gpu="H100-SXM"))
    took = seconds(lambda: simulate(system, problem.workload, 20.0, requests=20_000, seed=0))
    print(f"| event simulator, 20,000 chat requests | {took:.2f} s |")


if __name__ == "__main__":
    main()
