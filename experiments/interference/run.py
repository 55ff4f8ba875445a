"""How a prefill inside an iteration slows decode: a table, and a picture.

``python experiments/interference/run.py --plot interference.png``: OPT-13B on one, two and four
A100, profile `paper`; step times only, nothing is queued.
"""

import argparse

from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.problem import Problem, engine_for
from fluidserve.report.plots.figure import BATCHES, check_plot, plot_interference
from fluidserve.specs.applications import synthetic_workload
from fluidserve.specs.deployment import Pool
from fluidserve.specs.slo import Slo
from fluidserve.timing.interference import iteration_time
from fluidserve.timing.profile import load_profile

GPU = "A100-SXM4-80GB"
CONTEXT = 1000
PIECES = (0, 256, 512, 1024, 2048)
TPS = (1, 2, 4)


def problem_of() -> Problem:
    """Requests whose context is `CONTEXT` on average."""
    gpu = find_gpu(GPU)
    return Problem(
        model=find_model("OPT-13B"),
        gpu=gpu,
        workload=synthetic_workload(CONTEXT - 100, 201),
        slo=Slo(ttft=1.0, tpot=0.1),
        engine=engine_for(load_profile("paper"), gpu),
    )


def main() -> None:
    """Prints the table, and draws the picture where one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", help="PNG or SVG")
    plot = parser.parse_args().plot
    if plot:
        check_plot(plot)
    problem = problem_of()
    names = [f"{c} tokens" if c else "decode alone" for c in PIECES]
    print(f"| tp | batch | {' | '.join(names)} |")
    print("|---" * (2 + len(names)) + "|")
    for tp in TPS:
        instance = problem.instance(tp, 1)
        for batch in BATCHES:
            times = [iteration_time(instance, float(batch), float(CONTEXT), c) for c in PIECES]
            cells = " | ".join(f"{1e3 * float(t):.1f} ms" for t in times)
            print(f"| {tp} | {batch} | {cells} |")
    if plot:
        plot_interference(plot, problem, [Pool(replicas=1, tp=tp, pp=1, gpu=GPU) for tp in TPS])


if __name__ == "__main__":
    main()
