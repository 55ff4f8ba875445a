"""Which orders of requests stand best for all: scores of seeds, and the best sets of them.

``python experiments/sampled_traces/run.py`` takes some twenty minutes on two cores; it finds the
goodput of deployments of all kinds on each of the candidate traces and on long ones, chooses on
the training questions and judges on the test questions.
"""

import argparse
import dataclasses
import itertools
from collections.abc import Sequence

import jax
import numpy as np

from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.problem import Problem, engine_for
from fluidserve.sampled.goodput import goodput
from fluidserve.sampled.trace import REQUESTS, draw_trace
from fluidserve.specs.applications import find_application, synthetic_workload
from fluidserve.specs.deployment import parse_label
from fluidserve.specs.slo import Slo
from fluidserve.specs.workload import Workload
from fluidserve.timing.instance import AggregatedSystem, System
from fluidserve.timing.profile import load_profile

QUESTIONS = {
    "train": {
        "workloads": ("chatbot", "600/150/0.8/0.9", "4000/500/0.6/0.6"),
        "instances": (("Llama-3.1-8B", 1), ("Qwen2.5-32B", 2), ("Llama-3.1-70B", 4)),
        "seed": 1,
    },
    "test": {
        "workloads": ("summarization", "code-completion", "1024/256/1.2/1.0"),
        "instances": (("Qwen2.5-14B", 1), ("Mixtral-8x7B", 2), ("Llama-2-70B", 8)),
        "seed": 2,
    },
}
"""Workloads by name, or as prompt and output tokens with their coefficients of variation."""

KINDS = ("1S tp{} b512", "1C tp{}", "1P1D tp{}/tp{}")
EACH = 16
"""Deployments of each kind for each workload."""

ANY = 12
"""Traces that stand for any on the test questions; only these and the chosen ones serve them."""

LONG, LONG_SEEDS = 20_000, (900, 901, 902)


def workload_of(name: str) -> Workload:
    """A workload by its name in `QUESTIONS`."""
    if "/" not in name:
        return find_application(name)
    n_in, n_out, cv_in, cv_out = (float(x) for x in name.split("/"))
    return synthetic_workload(n_in, n_out, isl_cv=cv_in, osl_cv=cv_out)


def batch(
    workload: Workload, kind: str, instances: Sequence[tuple[str, int]], rng: np.random.Generator
) -> tuple[System | AggregatedSystem, Slo, np.ndarray]:
    """Deployments of a kind with limits and rates around what they may serve."""
    gpu = find_gpu("H100")
    systems, limits, guesses = [], [], []
    for _ in range(EACH):
        model, tp = instances[rng.integers(len(instances))]
        problem = Problem(
            model=find_model(model),
            gpu=gpu,
            workload=workload,
            slo=Slo(),
            engine=engine_for(load_profile("default"), gpu),
        )
        system = problem.system(parse_label(kind.replace("{}", str(tp)), gpu=gpu.name))
        if isinstance(system, AggregatedSystem) and system.token_budget is not None:
            budget = float(rng.choice([256.0, 512.0, 1024.0, 2048.0]))
            system = dataclasses.replace(system, token_budget=budget)
        instance = system.prefill if isinstance(system, System) else system.instance
        n_in, n_out = problem.mean_lengths
        bins = problem.bins
        long = float(bins.in_mean[int(np.searchsorted(np.cumsum(bins.in_share), 0.9))])
        prompt = float(instance.prefill_time(long))
        step = float(instance.decode_time(1.0, n_in + 0.5 * n_out))
        ttft = prompt * float(np.exp(rng.uniform(np.log(2.5), np.log(30.0)))) + step
        systems.append(system)
        limits.append((ttft, step * float(rng.uniform(1.5, 5.0))))
        guesses.append(0.5 / float(instance.prefill_time(n_in)))
    ttft, tpot = np.array(limits).T
    stacked = jax.tree.map(lambda *x: np.array(x), *systems)
    return stacked, Slo(ttft=ttft, tpot=tpot), np.array(guesses)


def errors(name: str, seeds: Sequence[int]) -> np.ndarray:
    """Relative error of the goodput of each question on each seed's trace, (seeds, questions)."""
    asked = QUESTIONS[name]
    rng, parts = np.random.default_rng(asked["seed"]), []
    for title in asked["workloads"]:
        workload = workload_of(title)
        traces = [draw_trace(workload, seed=seed) for seed in seeds]
        long = [draw_trace(workload, seed=seed, requests=LONG) for seed in LONG_SEEDS]
        for kind in KINDS:
            system, slo, guess = batch(workload, kind, asked["instances"], rng)
            rough = goodput(system, slo, traces[:1], guess=guess).value
            found = goodput(system, slo, traces, guess=np.where(rough > 0.0, rough, guess))
            kept = (found.of_traces > 0.0).all(0) & found.bracketed
            truth = goodput(system, slo, long, guess=np.where(kept, found.value, guess))
            kept &= truth.value > 0.0
            error = found.of_traces[:, kept] / truth.value[kept] - 1.0
            parts.append(error)
            spread = np.abs(truth.error / truth.value)[kept].mean()
            print(
                f"{name} {title} {kind}: {kept.sum()} questions, single traces "
                f"{np.abs(error).mean():.2%}, long ones {spread:.2%}",
                flush=True,
            )
    return np.concatenate(parts, axis=1)


def mean_error(error: np.ndarray, chosen: Sequence[int]) -> np.ndarray:
    """Error of the mean goodput over some traces, by question."""
    return error[list(chosen)].mean(0)


def best(error: np.ndarray, count: int) -> tuple[int, ...]:
    """The traces whose mean goodput has the least mean square error; greedy beyond pairs."""
    every = range(len(error))

    def score(chosen: Sequence[int]) -> float:
        return float((mean_error(error, chosen) ** 2).mean())

    if count <= 2:
        return min(itertools.combinations(every, count), key=score)
    fewer = best(error, count - 1)
    return min(((*fewer, i) for i in every if i not in fewer), key=score)


def main() -> None:
    """Prints the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=40, help="candidate traces")
    arguments = parser.parse_args()
    seeds = list(range(arguments.seeds))
    train = errors("train", seeds)
    chosen = {count: best(train, count) for count in (1, 2, 4, 8)}
    tested = sorted({*seeds[:ANY], *itertools.chain(*chosen.values())})
    found = errors("test", tested)
    test = np.full((len(seeds), found.shape[1]), np.nan)
    test[tested] = found
    rng = np.random.default_rng(0)
    print(f"\nTraces of {REQUESTS} requests; {train.shape[1]} and {test.shape[1]} questions.\n")
    print("| traces | seeds | train: mean, worst | test: mean, worst | any: mean, 99 % |")
    print("|---|---|---|---|---|")
    for count, picked in chosen.items():
        ours = [np.abs(mean_error(error, picked)) for error in (train, test)]
        draws = [rng.choice(ANY, count, replace=False) for _ in range(200)]
        any_ = np.abs(np.concatenate([mean_error(test, d) for d in draws]))
        shares = [f"{x.mean():.2%}, {x.max():.1%}" for x in ours]
        print(
            f"| {count} | {', '.join(str(i) for i in picked)} | {shares[0]} | {shares[1]} "
            f"| {any_.mean():.2%}, {np.quantile(any_, 0.99):.1%} |"
        )


if __name__ == "__main__":
    main()
