"""Step times of the shipped profiles against published measurements, as a Markdown table.

``FLUIDSERVE_DATA=FOLDER python experiments/step_times/run.py`` reads the collected measurements in
FOLDER/data and prints the mean absolute error and the bias (geometric mean of predicted over
measured) of each set. Nothing is fitted here.
"""

import csv
import gzip
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.timing.instance import build_instance
from fluidserve.timing.model import AbstractTimeModel, Work, decode_time
from fluidserve.timing.profile import Profile, load_profile

GPUS = {
    "a100_sxm": "A100-SXM4-80GB",
    "h100_sxm": "H100-SXM",
    "h200_sxm": "H200-SXM",
    "a100-80gb": "A100-SXM4-80GB",
    "h100-80gb": "H100-SXM",
}
Point = tuple[str, str, float, float]
"""Set, phase, predicted and measured time, s."""


def rows_of(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file, plain or gzipped."""
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else path.open()
    with opened as file:
        return list(csv.DictReader(file))


def times_of(profile: Profile, model: str, gpu: str, tp: int, dtype: str) -> AbstractTimeModel:
    """Step times of one instance."""
    spec = find_model(model, weight_dtype=dtype)
    instance = build_instance(spec, find_gpu(gpu), tp=tp, pp=1, profile=profile, utilization=0.9)
    return instance.times


def prompts_time(times: AbstractTimeModel, n_in: float, batch: float) -> float:
    """Time of `batch` prompts of `n_in` tokens computed together, s."""
    attended = 0.5 * batch * n_in**2
    work = Work(new=batch * n_in, attended=attended, kv_read=0.0, sequences=batch, prompts=batch)
    return float(times.stage_time(work))


def aiconfigurator(folder: Path, profile: Profile) -> Iterator[Point]:
    """Estimates that AIConfigurator makes from its vLLM kernel tables; bf16, tp 1-8."""
    for row in rows_of(folder / "oracles" / "aic_estimates.csv.gz"):
        if row["backend"] != "vllm":
            continue
        name = row["model"].split("/")[-1].replace("Meta-", "").replace("-Instruct", "")
        times = times_of(profile, name, GPUS[row["system"]], int(row["tp"]), "bf16")
        batch, context = float(row["batch"]), float(row["context"])
        if row["phase"] == "prefill":
            predicted = prompts_time(times, context, 1.0)
        else:
            predicted = float(decode_time(times, batch, batch * context))
        where = f"AIConfigurator vLLM tables, {GPUS[row['system']]}"
        yield where, row["phase"], predicted, float(row["latency_ms"]) / 1e3


def splitwise(folder: Path, profile: Profile) -> Iterator[Point]:
    """Engine of 2023, llama2-70b, tp 2-8, prompts up to 2048 tokens in all."""
    for row in rows_of(folder / "simulators" / "splitwise_measured.csv"):
        if row["model"] != "llama2-70b" or row["hardware"] not in GPUS:
            continue
        tp, n_in, batch = (
            int(row["tensor_parallel"]),
            float(row["prompt_size"]),
            float(row["batch_size"]),
        )
        if tp == 2 and n_in == 512 and batch == 64:  # an out-of-memory artefact
            continue
        times = times_of(profile, "Llama-2-70B", GPUS[row["hardware"]], tp, "fp16")
        where = f"Splitwise llama2-70b, {GPUS[row['hardware']]}"
        if n_in * batch <= 2048:
            yield where, "prefill", prompts_time(times, n_in, batch), float(row["prompt_ms"]) / 1e3
        context = batch * (n_in + 0.5 * float(row["token_size"]))
        yield (
            where,
            "decode",
            float(decode_time(times, batch, context)),
            float(row["token_ms"]) / 1e3,
        )


def dynamo(folder: Path, profile: Profile) -> Iterator[Point]:
    """Profiler sweeps published with Dynamo: Llama-3.1-8B in fp8 on one H200."""
    times = times_of(profile, "Llama-3.1-8B", "H200-SXM", 1, "fp8")
    where, stem = "Dynamo sweep, Llama-3.1-8B fp8, H200-SXM", "dynamo_h200_llama31_8b_fp8_tp1"
    for row in rows_of(folder / "measured" / f"{stem}_prefill.csv"):
        yield (
            where,
            "prefill",
            prompts_time(times, float(row["isl"]), 1.0),
            float(row["ttft_ms"]) / 1e3,
        )
    for row in rows_of(folder / "measured" / f"{stem}_decode.csv"):
        held = float(row["kv_usage_fraction"]) * float(row["max_kv_tokens"])
        batch = max(held / float(row["context_length"]), 1.0)
        yield where, "decode", float(decode_time(times, batch, held)), float(row["itl_ms"]) / 1e3


def main() -> None:
    """Prints the table."""
    root = os.environ.get("FLUIDSERVE_DATA")
    if not root:
        sys.exit("set FLUIDSERVE_DATA to the folder that holds data/")
    folder = Path(root) / "data"
    points: dict[tuple[str, str, str], list[float]] = {}
    sets = [("default", aiconfigurator), ("default", dynamo), ("vllm-0.2", splitwise)]
    for name, read in sets:
        for where, phase, predicted, measured in read(folder, load_profile(name)):
            points.setdefault((name, where, phase), []).append(np.log(predicted / measured))
    print("| profile | measurements | phase | points | mean error | median | worst | bias |")
    print("|---|---|---|---|---|---|---|---|")
    for (name, where, phase), logs in points.items():
        error = np.abs(np.expm1(logs))
        print(
            f"| {name} | {where} | {phase} | {len(logs)} | {error.mean():.1%} | "
            f"{np.median(error):.1%} | {error.max():.0%} | {np.expm1(np.mean(logs)):+.1%} |"
        )


if __name__ == "__main__":
    main()
