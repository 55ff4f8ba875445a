"""What a user waits for: whole processes, with the cache of compiled programs empty or full."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from benchmarks.speed.registry import Finding, Row, measurement
from benchmarks.speed.timing import Timed, timed

QUESTIONS = {
    "Llama-3.1-70B on 16 H100": "--model Llama-3.1-70B --gpu H100 --gpus 16 --app chatbot "
    "--ttft 500ms --tpot 25ms",
    "OPT-13B on 3 A100": "--model OPT-13B --gpu A100 --gpus 3 --app chatbot --ttft 250ms "
    "--tpot 100ms --profile paper",
    "Qwen3-32B on 64 H200": "--model Qwen3-32B --gpu H200 --gpus 64 --isl 4000 --osl 500 "
    "--ttft 300ms --tpot 10ms",
}


def run(arguments: str, cache: str) -> None:
    """One run of the command line with its cache in a directory.

    Raises:
      CalledProcessError: it failed.
    """
    environment = os.environ | {"XDG_CACHE_HOME": cache}
    words = [sys.executable, "-m", "fluidserve", *arguments.split()]
    subprocess.run(words, check=True, capture_output=True, env=environment)


@measurement("screened")
def screened() -> Iterator[Row]:
    """Budgets of more than a million deployments."""
    for gpus in (1024, 4096):
        question = QUESTIONS["Llama-3.1-70B on 16 H100"].replace("--gpus 16", f"--gpus {gpus}")
        with tempfile.TemporaryDirectory() as cache:
            plan = f"plan {question} --verify 0"
            found = timed(lambda p=plan, c=cache: run(p, c), repeat=1)
        yield Finding(f"`plan`, Llama-3.1-70B on {gpus:,} H100, screened, warm", _told(found))


def _told(time: Timed) -> str:
    return f"{time.wall:.2f} s ({time.cpu:.2f} CPU s)"


@measurement("start")
def start() -> Iterator[Row]:
    """The command line."""
    with tempfile.TemporaryDirectory() as cache:
        found = timed(lambda: run("--help", cache), repeat=3)
        yield Finding("`fluidserve --help`", _told(found))
    for name, question in QUESTIONS.items():
        plan = f"plan {question} --verify 0"
        with tempfile.TemporaryDirectory() as cache:
            found = timed(lambda p=plan, c=cache: run(p, c), repeat=2)
            cold = found.first + found.wall
            yield Finding(f"`plan`, {name}, cold: nothing compiled yet", f"{cold:.2f} s")
            yield Finding(f"`plan`, {name}, warm", _told(found))
            checked = timed(lambda q=question, c=cache: run(f"plan {q}", c), repeat=1)
            yield Finding(f"`plan`, {name}, warm, best three simulated", _told(checked))
