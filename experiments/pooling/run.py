"""What sharing gains: goodput per GPU of n prefill and n decode instances under every rule.

``python experiments/pooling/run.py`` prints a Markdown table: OPT-13B on A100, tp 1 in both pools,
chatbot traffic, by the formulas and by the event simulator. ``--data FOLDER`` adds the goodputs
that simdistserve found for such pools, read from FOLDER/data.
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path

from fluidserve.eventsim import GoodputEstimate, goodput
from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.problem import Problem, engine_for
from fluidserve.search.plan import analyse
from fluidserve.specs.applications import find_application
from fluidserve.specs.deployment import Dispatch, parse_label
from fluidserve.specs.slo import Slo
from fluidserve.timing.profile import load_profile

GPU = "A100-SXM4-80GB"
RULES: tuple[Dispatch, ...] = ("shared", "jsq", "round-robin", "random")
POOLS = (1, 2, 4)


def problem_of(rule: Dispatch) -> Problem:
    """The question under a dispatch rule."""
    gpu = find_gpu(GPU)
    return Problem(
        model=find_model("OPT-13B"),
        gpu=gpu,
        workload=find_application("chatbot"),
        slo=Slo(ttft=0.25, tpot=0.1, attainment=0.9),
        engine=engine_for(load_profile("paper"), gpu, link_bandwidth=float("inf"), dispatch=rule),
    )


def rows(requests: int, seeds: int) -> Iterator[tuple[int, Dispatch, float, GoodputEstimate]]:
    """Pools, rule, goodput by the formulas and by simulation, 1/s."""
    for n in POOLS:
        deployment = parse_label(f"{n}P{n}D tp1/tp1", gpu=GPU)
        for rule in RULES if n > 1 else RULES[:1]:
            problem = problem_of(rule)
            found = analyse(problem, deployment, None).goodput
            simulated = goodput(
                problem.system(deployment),
                problem.workload,
                problem.slo,
                guess=found,
                requests=n * requests,
                seeds=range(seeds),
            )
            yield n, rule, found, simulated


def published(folder: Path) -> dict[int, float]:
    """Goodput per GPU of simdistserve's pools, which join the shortest queue, by n."""
    path = folder / "data" / "simulators" / "simdistserve_pooling.csv"
    with path.open() as file:
        table = list(csv.DictReader(file))
    return {
        int(r["n_prefill"]): float(r["goodput_per_gpu"])
        for r in table
        if r["n_prefill"] == r["n_decode"]
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000, help="for each pair of instances")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", type=Path, help="folder with the published goodputs")
    args = parser.parse_args()
    other = published(args.data) if args.data else {}
    print(
        "| pools | rule | formulas | simulated | gain, formulas | gain, simulated | simdistserve |"
    )
    print("|---|---|---|---|---|---|---|")
    single: tuple[float, float] | None = None
    for n, rule, found, simulated in rows(args.requests, args.seeds):
        gpus = 2 * n
        single = single or (found / gpus, simulated.value / gpus)
        error = (simulated.high - simulated.low) / 2 / gpus
        theirs = f"{other[n]:.2f}" if rule in ("shared" if n == 1 else "jsq") and n in other else ""
        print(
            f"| {n}P{n}D | {rule} | {found / gpus:.2f} | {simulated.value / gpus:.2f} "
            f"±{error:.2f} | {found / gpus / single[0]:.2f} | "
            f"{simulated.value / gpus / single[1]:.2f} | {theirs} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
