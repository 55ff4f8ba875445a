"""Goodput by the formulas against the event simulator, over candidates drawn from full grids.

``python benchmarks/accuracy.py --set judge`` runs what docs/accuracy.md reports; ``--set tune`` the
other models, workloads and seeds on which constants and thresholds were chosen. Results are
appended to a JSON-lines file as they come, and candidates already there are not run again.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import multiprocessing
import os
import sys
from pathlib import Path

import numpy as np

from fluidserve.eventsim import attainment, goodput, simulate
from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.io.trace import trace_workload
from fluidserve.io.traces import read_trace
from fluidserve.problem import Problem, engine_for
from fluidserve.search.grid import disaggregated_grid
from fluidserve.search.score import question_of, score_grid
from fluidserve.specs.applications import find_application, synthetic_workload
from fluidserve.specs.deployment import parse_label
from fluidserve.specs.slo import Slo
from fluidserve.status import confidence_level, doubt_sentences
from fluidserve.timing.profile import load_profile


@dataclasses.dataclass(frozen=True)
class Case:
    """A full grid to draw from."""

    model: str
    gpu: str
    profile: str
    traffic: str
    ttft: float
    tpot: float
    budget: int
    draws: int
    link: float | None = None


JUDGE = [
    Case("OPT-13B", "A100-SXM4-80GB", "paper", "chatbot", 0.25, 0.1, 16, 12),
    Case("OPT-66B", "A100-SXM4-80GB", "paper", "chatbot", 2.5, 0.15, 32, 12),
    Case("OPT-66B", "A100-SXM4-80GB", "paper", "code-completion", 0.125, 0.2, 32, 12),
    Case("OPT-66B", "A100-SXM4-80GB", "paper", "summarization", 15.0, 0.15, 32, 12),
    Case("Llama-3.1-70B", "H100-SXM", "default", "azure2023_conv", 1.0, 0.05, 32, 12),
]
TUNE = [
    Case("OPT-30B", "A100-SXM4-80GB", "paper", "600/150/0.8/0.9", 0.6, 0.08, 16, 8),
    Case("Llama-2-13B", "A100-SXM4-80GB", "paper", "300/120/0.5/0.7", 0.12, 0.06, 16, 8),
    Case("Llama-3.1-8B", "H100-SXM", "default", "1024/256/0.6/0.8", 0.3, 0.02, 16, 8),
    Case("Qwen3-32B", "H100-SXM", "default", "4000/500/0/0", 0.6, 0.03, 24, 8),
    Case("OPT-175B", "A100-SXM4-80GB", "paper", "755/200/0.6/1.0", 4.0, 0.2, 48, 8),
]


FEWEST_SEEDS, MOST_SEEDS = 6, 80


def workload_of(traffic: str):
    """An application, ``isl/osl/isl_cv/osl_cv``, or a trace's lengths with Poisson arrivals."""
    if "/" in traffic:
        isl, osl, isl_cv, osl_cv = (float(x) for x in traffic.split("/"))
        return synthetic_workload(isl, osl, isl_cv=isl_cv, osl_cv=osl_cv)
    if traffic.startswith("azure"):
        folder = Path(os.environ["FLUIDSERVE_DATA"]) / "data" / "traces"
        trace = trace_workload(read_trace(folder / f"{traffic}.csv.gz"), traffic)
        return dataclasses.replace(trace, arrivals=np.empty(0), arrival_scv=1.0, dispersion=1.0)
    return find_application(traffic)


def problem_of(case: Case) -> Problem:
    """The question that a case asks."""
    gpu = find_gpu(case.gpu)
    return Problem(
        model=find_model(case.model),
        gpu=gpu,
        workload=workload_of(case.traffic),
        slo=Slo(ttft=case.ttft, tpot=case.tpot, attainment=0.9),
        engine=engine_for(load_profile(case.profile), gpu, link_bandwidth=case.link),
    )


def draw(case: Case, seed: int) -> list[dict]:
    """Candidates of a case drawn uniformly from those of its grid that can meet the SLO."""
    problem = problem_of(case)
    grid = disaggregated_grid(problem, case.budget)
    scores = score_grid(grid, question_of(problem))
    possible = np.flatnonzero(scores.goodput > 0)
    rng = np.random.default_rng(seed)
    picks = rng.choice(possible, min(case.draws, len(possible)), replace=False)
    return [
        {
            "case": dataclasses.asdict(case),
            "label": grid.deployment(i).label,
            "analysis": float(scores.goodput[i]),
            "binding": int(scores.binding[i]),
            "doubts": int(scores.doubts[i]),
            "metrics": {k: float(v[i]) for k, v in vars(scores.metrics).items()},
        }
        for i in picks
    ]


def judge(row: dict, requests: int, precision: float) -> dict:
    """Adds the event simulator's goodput, from as many runs as its standard error asks for.

    A rough root comes first. Around it attainment is taken as a straight line in the rate: its
    slope from a few runs on both sides, its height from independent runs in the middle.
    """
    case = Case(**row["case"])
    problem = problem_of(case)
    system = problem.system(parse_label(row["label"], gpu=case.gpu))
    target, runs = float(problem.slo.attainment), 0

    def share(rate: float, seed: int) -> float:
        records = simulate(system, problem.workload, rate, requests=requests, seed=seed)
        return attainment(records.window(), problem.slo)

    root = goodput(
        system,
        problem.workload,
        problem.slo,
        guess=row["analysis"],
        requests=requests,
        seeds=[0],
        tolerance=0.02,
    ).value
    for _ in range(4):
        centre, heights, error = root, [], np.inf
        pairs = [(share(centre * 0.98, s), share(centre * 1.02, s)) for s in range(4)]
        slope = max(float(np.mean([low - high for low, high in pairs])) / 0.04, 1e-3)
        for seed in range(MOST_SEEDS):
            heights.append(share(centre, seed))
            error = float(np.std(heights, ddof=1) / len(heights) ** 0.5 / slope) if seed else error
            if seed + 1 >= FEWEST_SEEDS and error <= precision:
                break
        root = centre * (1.0 + (float(np.mean(heights)) - target) / slope)
        runs += 8 + len(heights)
        if abs(root / centre - 1.0) <= 0.02:
            break
    return row | {"simulated": root, "se": error * root, "runs": runs}


def table(rows: list[dict]) -> str:
    """Markdown: errors by confidence level."""
    lines = ["| confidence | candidates | median error | 90th percentile | worst | mean signed |"]
    lines.append("|---|---|---|---|---|---|")
    groups = {"green": ["green"], "amber": ["amber"], "green and amber": ["green", "amber"]}
    for name, levels in (groups | {"red": ["red"]}).items():
        part = [r for r in rows if confidence_level(r["doubts"]) in levels and r["simulated"] > 0]
        if not part:
            continue
        error = np.array([r["analysis"] / r["simulated"] - 1 for r in part])
        size = np.abs(error)
        lines.append(
            f"| {name} | {len(part)} | {np.median(size):.1%} | {np.quantile(size, 0.9):.1%} | "
            f"{size.max():.1%} | {error.mean():+.1%} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Runs a set and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", choices=["judge", "tune"], default="judge")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--precision", type=float, default=0.005, help="relative standard error")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=Path("accuracy.jsonl"))
    args = parser.parse_args()
    done = {}
    if args.out.exists():
        for line in args.out.read_text().splitlines():
            row = json.loads(line)
            done[json.dumps(row["case"]), row["label"]] = row
    rows, todo = [], []
    for i, case in enumerate(JUDGE if args.set == "judge" else TUNE):
        for row in draw(case, args.seed + i):
            old = done.get((json.dumps(row["case"]), row["label"]))
            if old:
                rows.append(row | {k: old[k] for k in ("simulated", "se", "runs")})
            else:
                todo.append(row)
    with (
        concurrent.futures.ProcessPoolExecutor(
            args.workers, mp_context=multiprocessing.get_context("spawn")
        ) as pool,
        args.out.open("a") as file,
    ):
        jobs = [pool.submit(judge, row, args.requests, args.precision) for row in todo]
        for job in concurrent.futures.as_completed(jobs):
            row = job.result()
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"{len(rows)}/{len(todo)}", row["case"]["model"], row["label"], file=sys.stderr)
    for r in sorted(rows, key=lambda r: (r["case"]["model"], r["case"]["traffic"], r["label"])):
        error = r["analysis"] / r["simulated"] - 1 if r["simulated"] else float("nan")
        print(
            f"{r['case']['model']:14} {r['case']['traffic']:16} {r['label']:22} "
            f"analysis {r['analysis']:8.3f} simulated {r['simulated']:8.3f} ±{r['se']:.3f} "
            f"{error:+7.1%} {confidence_level(r['doubts']):6} binding {r['binding']} "
            f"{'; '.join(doubt_sentences(r['doubts']))}"
        )
    print(table(rows))


if __name__ == "__main__":
    main()
