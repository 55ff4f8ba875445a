"""Dynamo's replay of its mocker: TTFT and TPOT, formulas and event simulator against it."""

import dataclasses
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import jax
import numpy as np
from common import errors, profile, resumed, rows_of

from fluidserve.deploy.disaggregated import at_rate, prepare
from fluidserve.deploy.early import early_latencies, early_state
from fluidserve.eventsim import simulate_first, summarise_first
from fluidserve.search.score import as_arrays
from fluidserve.specs.applications import synthetic_workload
from fluidserve.specs.lengths import length_bins
from fluidserve.specs.slo import Slo
from fluidserve.timing.instance import Instance, System
from fluidserve.timing.polynomial import PolynomialConstants, polynomial_times

TOKENS_PER_PASS = "max_num_batched_tokens"
BYTES_PER_TOKEN = 131_072.0
RUNS = 3
EXCLUDED = "aggregated workers (12 runs), whose prefill and decode share an instance"


def groups() -> dict[str, list[dict[str, str]]]:
    """Disaggregated runs under load, seeds of one configuration together.

    Runs of 60 requests have no load; the profile comes from them.
    """
    found: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows_of("oracles/dynamo_replay_oracle.csv"):
        if row["mode"] == "disagg" and row["n"] != "60":
            names = ("P", "D", "rate", "isl", "osl", TOKENS_PER_PASS, "n", "kv_gbps")
            found["/".join(row[name] for name in names)].append(row)
    return dict(found)


def system_of(row: dict[str, str]) -> System:
    """The deployment of a run."""
    constants = profile("dynamo-mocker").constants_for("any")
    assert isinstance(constants, PolynomialConstants)
    times = polynomial_times("any", tp=1, pp=1, constants=constants)
    instance = Instance(times=times, pp=1.0, kv_capacity=1e9)
    bandwidth = float(row["kv_gbps"]) * 1e9 if row["kv_gbps"] else math.inf
    return System(
        prefill=instance,
        decode=instance,
        n_prefill=float(row["P"]),
        n_decode=float(row["D"]),
        kv_bytes_per_token=BYTES_PER_TOKEN,
        link_bandwidth=bandwidth,
        handover_overhead=0.0,
        max_batch=256.0,
        prefill_batch=max(int(row[TOKENS_PER_PASS]) // int(row["isl"]), 1),
        first_token="decode",
        dispatch="round-robin",
    )


@jax.jit
def _formulas(system: System, bins, horizon, rate):
    plan = dataclasses.replace(prepare(system, bins), horizon=horizon)
    return early_latencies(plan, early_state(plan, rate), 48), at_rate(plan, rate).prefill.load


def compute(key: str) -> dict[str, Any]:
    """Formulas and simulation of one configuration, times in ms."""
    row = groups()[key][0]
    system, horizon, rate = system_of(row), int(row["n"]), float(row["rate"])
    workload = synthetic_workload(float(row["isl"]), float(row["osl"]), isl_cv=0.0, osl_cv=0.0)
    bins = length_bins(workload.lengths)
    found, load = _formulas(*as_arrays((system, bins, float(horizon), rate)))
    return {
        "load": float(load),
        "batched": system.prefill_batch > 1,
        "formulas": _figures(found.ttft_mean, found.ttft[1], found.tpot_mean, found.tpot[1]),
        "simulated": simulated(row),
    }


def simulated(row: dict[str, str]) -> list[float]:
    """Mean and P90 of TTFT, then of TPOT, by the event simulator, ms."""
    workload = synthetic_workload(float(row["isl"]), float(row["osl"]), isl_cv=0.0, osl_cv=0.0)
    system, rate = system_of(row), float(row["rate"])
    runs = simulate_first(system, workload, rate, horizon=int(row["n"]), runs=RUNS, seed=1)
    found = summarise_first(runs, Slo(ttft=math.inf, tpot=math.inf, attainment=0.9))
    return _figures(found.ttft.mean, found.ttft.p90, found.tpot.mean, found.tpot.p90)


def _figures(*times) -> list[float]:
    return [1e3 * float(t) for t in times]


def _mean(values) -> float:
    return float(np.mean(list(values)))


def table(cache: Path) -> str:
    """Errors by figure, for passes of one prompt and of several."""
    runs = groups()
    rows = resumed(cache / "dynamo.jsonl", runs, compute)
    names = ("mean_ttft", "p90_ttft", "mean_tpot", "p90_tpot")
    lines = [
        "| Dynamo replay | by | rows | median | P90 | worst | signed |",
        "|---|---|---|---|---|---|---|",
    ]
    for batched in (False, True):
        chosen = [r for r in rows if r["batched"] is batched]
        kind = "passes of several prompts" if batched else "passes of one prompt"
        for i, name in enumerate(names):
            theirs = [_mean(float(x[name]) for x in runs[r["key"]]) for r in chosen]
            for by in ("formulas", "simulated"):
                pairs = [(r[by][i], t) for r, t in zip(chosen, theirs, strict=True)]
                lines.append(f"| {name.replace('_', ' ')}, {kind} | {by} | {errors(pairs)} |")
    return "\n".join([*lines, "", f"Not comparable: {EXCLUDED}."])
