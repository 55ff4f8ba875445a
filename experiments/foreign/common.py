"""What the comparisons share: data, profiles, errors, and results that survive an interruption."""

import csv
import gzip
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fluidserve.specs.workload import JointLengths, Workload
from fluidserve.timing.profile import Profile, load_profile

HERE = Path(__file__).resolve().parent
DATA = Path(os.environ.get("FLUIDSERVE_DATA", ".")) / "data"


def rows_of(name: str) -> list[dict[str, str]]:
    """Rows of a CSV file of the collected data, plain or gzipped."""
    path = DATA / name
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else path.open()
    with opened as file:
        return list(csv.DictReader(file))


def profile(name: str) -> Profile:
    """A profile of this experiment, or a shipped one."""
    own = HERE / "profiles" / f"{name}.toml"
    return load_profile(str(own) if own.exists() else name)


def lengths_workload(name: str) -> Workload:
    """Poisson traffic with the (prompt, output) pairs of a file in simulators/workloads."""
    rows = rows_of(f"simulators/workloads/{name}_synth.csv.gz")
    pairs = np.array([(int(r["prompt_len"]), int(r["output_len"])) for r in rows])
    lengths = JointLengths(n_in=pairs[:, 0], n_out=pairs[:, 1])
    return Workload(
        name=name,
        lengths=lengths,
        arrival_scv=1.0,
        dispersion=1.0,
        rate=float("inf"),
        arrivals=np.empty(0),
    )


def resumed(
    path: Path, keys: Iterable[str], compute: Callable[[str], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Results by key, computed where the file does not have them yet, in the order of `keys`."""
    done: dict[str, dict[str, Any]] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            row = json.loads(line)
            done[row["key"]] = row
    found = []
    with path.open("a") as file:
        for key in keys:
            if key not in done:
                done[key] = {"key": key, **compute(key)}
                file.write(json.dumps(done[key]) + "\n")
                file.flush()
            found.append(done[key])
    return found


def errors(pairs: Iterable[tuple[float, float]]) -> str:
    """Cells of a table: how many, median, 90th percentile, worst, mean signed error."""
    ratio = np.array([ours / theirs - 1.0 for ours, theirs in pairs])
    size = np.abs(ratio)
    return (
        f"{len(ratio)} | {np.median(size):.1%} | {np.quantile(size, 0.9):.1%} | {size.max():.1%} | "
        f"{ratio.mean():+.1%}"
    )
