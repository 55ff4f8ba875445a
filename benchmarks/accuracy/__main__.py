"""Formulas against the event simulator; writes the tables and the picture of docs/accuracy.md.

``python -m benchmarks.accuracy`` draws the judged set (225 deployments: five models, five
workloads, five kinds of GPU, tp and pp, link speeds, dispatch rules), simulates what is not in the
JSON-lines file yet, and compares it with the formulas as they are now. ``--set tune`` takes the
other models, workloads and seeds on which constants and thresholds were chosen; ``--set kinds``
takes colocated and chunked deployments of five questions. Traces come from
the directory that FLUIDSERVE_DATA names.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import multiprocessing
import os
import random
import sys
from pathlib import Path

from benchmarks.accuracy.cases import Case, draw_cases, problem_of
from benchmarks.accuracy.judge import judge
from benchmarks.accuracy.report import Compared, compare, listing, scatter, tables
from fluidserve import runtime
from fluidserve.search.plan import analyse
from fluidserve.verify.crosscheck import requests_for


def main() -> None:
    """Runs a set and prints its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", choices=["judge", "tune", "kinds"], default="judge")
    parser.add_argument("--requests", type=int, default=6_000, help="most requests of a run")
    parser.add_argument("--fewest", type=int, default=2_000, help="fewest requests of a run")
    parser.add_argument("--precision", type=float, default=0.01, help="relative standard error")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--file", type=Path, help="simulated results; default accuracy-SET.jsonl")
    parser.add_argument("--compare-only", action="store_true", help="what the file holds, no more")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file")
    parser.add_argument("--plot", type=Path, help="write the scatter plot to this file")
    args = parser.parse_args()
    file = args.file or Path(f"accuracy-{args.set}.jsonl")
    runtime.enable_cache()
    done = _read(file)
    if args.compare_only:
        cases = list(done)
    else:
        cases = draw_cases(args.set)
        todo = [case for case in cases if case not in done]
        # what is there when somebody stops early is a fair sample
        random.Random(0).shuffle(todo)
        done |= _simulate(todo, file, args)
    rows = [_compare(case, done[case]) for case in cases]
    print(listing(rows))
    text = tables(rows)
    print(text)
    if args.markdown:
        args.markdown.write_text(text + "\n")
    if args.plot:
        scatter(rows, args.plot)


def _read(file: Path) -> dict[Case, dict]:
    """Simulated results by case."""
    if not file.exists():
        return {}
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return {Case(**line["case"]): line["simulated"] for line in lines}


def _simulate(todo: list[Case], file: Path, args: argparse.Namespace) -> dict[Case, dict]:
    """Simulates cases side by side and appends each to the file as it is done."""
    found: dict[Case, dict] = {}
    if not todo:
        return found
    context = multiprocessing.get_context("spawn")
    with (
        concurrent.futures.ProcessPoolExecutor(args.workers, mp_context=context) as pool,
        file.open("a") as out,
    ):
        jobs = {
            pool.submit(judge, case, *_start(case, args), args.precision): case for case in todo
        }
        for job in concurrent.futures.as_completed(jobs):
            case, simulated = jobs[job], job.result()
            found[case] = simulated
            out.write(json.dumps({"case": dataclasses.asdict(case), "simulated": simulated}) + "\n")
            out.flush()
            print(f"{len(found)}/{len(todo)} {case.model} {case.label}", file=sys.stderr)
    return found


def _start(case: Case, args: argparse.Namespace) -> tuple[float, int]:
    """Where the search of the simulated goodput starts, 1/s, and the requests of a run.

    Fewer requests where each costs many decode iterations, but never too few for the system to
    forget that it was empty.
    """
    problem = problem_of(case)
    idle = analyse(problem, case.deployment, 1e-3)
    guess = max(idle.goodput, 1e-3)
    busy = analyse(problem, case.deployment, guess)
    requests = max(requests_for(problem, busy), args.fewest)
    return guess, min(requests, args.requests)


def _compare(case: Case, simulated: dict) -> Compared:
    """The formulas at the goodput and at the loads that were simulated."""
    problem = problem_of(case)
    points = [analyse(problem, case.deployment, p["rate"]) for p in simulated["points"]]
    row = points[0] if points else analyse(problem, case.deployment, 1e-3)
    return compare(case, row, points, simulated)


if __name__ == "__main__":
    main()
