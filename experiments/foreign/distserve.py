"""DistServe: its simulator, and the attainment measured on A100s.

What its simulator leaves out or does otherwise is mirrored here, but for its admission of 50,000
tokens of context to decode, which is left out: KV crosses in no time, prefill takes everything
queued in one pass, TPOT divides by the output tokens and includes the wait for decode, and the
two-piece decode time may fall with the batch. Goodput is where P90 of TTFT or of TPOT, each by
itself, reaches its limit.
"""

import ast
import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from common import errors, lengths_workload, profile, resumed, rows_of

from fluidserve.deploy.disaggregated import prepare
from fluidserve.deploy.early import early_metrics, early_state
from fluidserve.eventsim import simulate_first
from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.search.score import as_arrays
from fluidserve.specs.lengths import length_bins
from fluidserve.specs.slo import Slo
from fluidserve.timing.instance import Instance, System, build_instance
from fluidserve.timing.polynomial import PolynomialTimes

GPU = "A100-SXM4-80GB"
NAMES = {"facebook/opt-13b": "OPT-13B", "facebook/opt-66b": "OPT-66B"}
NAMES |= {"opt-13b": "OPT-13B", "opt-66b": "OPT-66B"}
LINK = 240e9
"""B/s between GPUs of a node with NVLink, where a profile is ours (docs of the measured data)."""
WHOLE_QUEUE = 64
LIMITS = {
    ("OPT-13B", "sharegpt"): (0.25, 0.1),
    ("OPT-66B", "sharegpt"): (2.5, 0.15),
    ("OPT-13B", "humaneval"): (0.125, 0.2),
    ("OPT-66B", "humaneval"): (0.125, 0.2),
    ("OPT-66B", "longbench"): (15.0, 0.15),
}
_HALVINGS = 14


@dataclasses.dataclass(frozen=True)
class Setup:
    """A deployment on some traffic, as the two paths need it."""

    model: str
    traffic: str
    shape: tuple[int, int, int, int]
    instances: tuple[int, int] = (1, 1)
    profile: str = "distserve"

    @property
    def gpus(self) -> int:
        """GPUs of both pools."""
        tp, pp, decode_tp, decode_pp = self.shape
        return self.instances[0] * tp * pp + self.instances[1] * decode_tp * decode_pp

    @property
    def slo(self) -> Slo:
        """The limits of DistServe's evaluation."""
        ttft, tpot = LIMITS[self.model, self.traffic]
        return Slo(ttft=ttft, tpot=tpot, attainment=0.9)

    def system(self) -> System:
        """The deployment."""
        foreign = self.profile == "distserve"
        prefill, decode = self._instance(*self.shape[:2]), self._instance(*self.shape[2:])
        if foreign:
            decode = dataclasses.replace(decode, kv_capacity=1e9)
            prefill = dataclasses.replace(prefill, kv_capacity=1e9)
        return System(
            prefill=prefill,
            decode=decode,
            n_prefill=float(self.instances[0]),
            n_decode=float(self.instances[1]),
            kv_bytes_per_token=find_model(self.model).kv_bytes_per_token,
            link_bandwidth=math.inf if foreign else LINK,
            handover_overhead=0.0,
            max_batch=1e6 if foreign else 1024.0,
            prefill_batch=WHOLE_QUEUE if foreign else 1,
            first_token="prefill",
        )

    def _instance(self, tp: int, pp: int) -> Instance:
        name = f"distserve-{self.model.lower()}" if self.profile == "distserve" else self.profile
        found = profile(name)
        built = build_instance(
            find_model(self.model),
            find_gpu(GPU),
            tp=tp,
            pp=pp,
            profile=found,
            utilization=found.memory_utilization,
        )
        times = built.times
        if isinstance(times, PolynomialTimes):
            # 1 ms per stage on each of them, of which the profile has that of a single stage
            extra = pp * 1e-3 - 1e-3 / pp
            times = dataclasses.replace(times, prefill_fixed=times.prefill_fixed + extra)
        return dataclasses.replace(built, times=times)


@jax.jit
def _metrics(system, bins, slo, horizon, rate):
    plan = dataclasses.replace(prepare(system, bins), horizon=horizon)
    return early_metrics(plan, slo, rate, early_state(plan, rate))


def by_formulas(setup: Setup, horizon: int, rate: float) -> tuple[float, float, float]:
    """Shares that meet TTFT, TPOT and both, by the formulas."""
    bins = length_bins(lengths_workload(setup.traffic).lengths)
    found = _metrics(*as_arrays((setup.system(), bins, setup.slo, float(horizon), rate)))
    return float(found.ttft_attainment), float(found.tpot_attainment), float(found.attainment)


def by_simulation(setup: Setup, horizon: int, rate: float, runs: int) -> tuple[float, float, float]:
    """The same by the event simulator, with the foreign TPOT where the step times are foreign."""
    served = simulate_first(
        setup.system(), lengths_workload(setup.traffic), rate, horizon=horizon, runs=runs
    )
    slo, shares = setup.slo, []
    for r in served:
        tokens = r.n_out if setup.profile == "distserve" else np.maximum(r.n_out - 1, 1)
        tpot = (r.last_token - r.prefill_end) / tokens
        in_ttft, in_tpot = r.ttft <= slo.ttft, tpot <= slo.tpot
        shares.append((in_ttft.mean(), in_tpot.mean(), (in_ttft & in_tpot).mean()))
    ttft, tpot, both = np.mean(shares, axis=0)
    return float(ttft), float(tpot), float(both)


def goodput(attainment, first: float) -> float:
    """Rate at which a falling share is 0.9, by doubling and halving from a first guess, 1/s."""
    low, high = 0.0, first
    while attainment(high) >= 0.9 and high < 64 * first:
        low, high = high, 2.0 * high
    for _ in range(_HALVINGS if low else _HALVINGS + 6):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if attainment(middle) >= 0.9 else (low, middle)
        if high - low < 0.005 * high:
            break
    return 0.5 * (low + high)


def separately(shares: tuple[float, float, float]) -> float:
    """The smaller of the two shares: what limits on each P90 by itself look at."""
    return min(shares[:2])


def oracle_rows() -> dict[str, dict[str, str]]:
    """Goodput rows of DistServe's simulator, but those at the bound of its search."""
    rows = rows_of("simulators/simdistserve_oracle.csv.gz")
    found = {}
    for r in rows:
        bound = float(r["per_gpu_rate"]) > 15.9
        if r["kind"] == "goodput" and not bound and float(r["rate_rps"]) > 0:
            names = ("model", "workload", "N", "tp_prefill", "pp_prefill", "tp_decode", "pp_decode")
            found["/".join(r[n] for n in names)] = r
    return found


def setup_of(row: dict[str, str]) -> Setup:
    """The configuration of a row of the oracle."""
    shape = (int(row["tp_prefill"]), int(row["pp_prefill"]))
    decode = (int(row["tp_decode"]), int(row["pp_decode"]))
    return Setup(NAMES[row["model"]], row["workload"], (*shape, *decode))


def compute_goodput(key: str) -> dict[str, Any]:
    """Goodputs of one configuration of DistServe's simulator, 1/s."""
    row = oracle_rows()[key]
    setup, horizon, theirs = setup_of(row), int(row["N"]), float(row["rate_rps"])
    found = goodput(lambda r: separately(by_formulas(setup, horizon, r)), theirs)
    runs = max(1500 // horizon, 2)
    at = [
        (x, separately(by_simulation(setup, horizon, x * theirs, runs))) for x in (0.8, 1.0, 1.25)
    ]
    return {"theirs": theirs, "formulas": found, "simulated_shares": at}


def simulated_goodput(row: dict[str, Any]) -> float:
    """Where the simulated share crosses 0.9, on lines through three rates; their ends beyond."""
    x, y = (np.array(v) for v in zip(*row["simulated_shares"], strict=True))
    above = y >= 0.9
    if above.all() or not above.any():
        i, j = (1, 2) if above.all() else (0, 1)
    else:
        i = int(np.flatnonzero(above & ~np.append(above[1:], False))[0])
        j = i + 1
    slope = min((y[j] - y[i]) / (x[j] - x[i]), -0.05)
    return row["theirs"] * float(np.clip(x[i] + (0.9 - y[i]) / slope, 0.4, 2.5))


def goodput_table(cache: Path, every: int) -> str:
    """Errors of goodput by case; only each `every`-th configuration is simulated."""
    keys = list(oracle_rows())[::every]
    rows = resumed(cache / "distserve.jsonl", keys, compute_goodput)
    cases: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for r in rows:
        cases[tuple(r["key"].split("/")[1:4])].append(r)
    lines = [
        "| DistServe's simulator, goodput | by | rows | median | P90 | worst | signed | Spearman |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (model, traffic, n), part in sorted(cases.items()):
        for by in ("formulas", "simulated"):
            ours = [r[by] if by == "formulas" else simulated_goodput(r) for r in part]
            theirs = [r["theirs"] for r in part]
            cells = errors(zip(ours, theirs, strict=True))
            per_gpu = [setup_of(oracle_rows()[r["key"]]).gpus for r in part]
            rank = spearman(np.divide(ours, per_gpu), np.divide(theirs, per_gpu))
            lines.append(f"| {model} {traffic}, N={n} | {by} | {cells} | {rank:.2f} |")
    return "\n".join(lines)


def spearman(a: Iterable[float], b: Iterable[float]) -> float:
    """Rank correlation."""
    ranks = np.stack([np.argsort(np.argsort(np.asarray(list(x)))) for x in (a, b)])
    centred = ranks - ranks.mean(axis=1, keepdims=True)
    return float(centred[0] @ centred[1] / np.prod(np.linalg.norm(centred, axis=1)))


PROFILES = ("distserve", "default", "vllm-0.2")


def measured_rows() -> dict[str, dict[str, str]]:
    """Attainment of DistServe on A100s, with known placements."""
    rows = rows_of("simulators/distserve_real_attainment.csv")
    chosen = [r for r in rows if r["system"] == "distserve" and r["workload"] == "sharegpt"]
    return {f"{r['model']}/{r['total_rate']}/{p}": r for r in chosen for p in PROFILES}


def compute_measured(key: str) -> dict[str, Any]:
    """Attainment of one measured point under one profile, per cent."""
    row, name = measured_rows()[key], key.rsplit("/", 1)[1]
    shape = (2, 1, 1, 1) if row["model"] == "opt-13b" else (4, 1, 2, 2)
    setup = Setup(NAMES[row["model"]], row["workload"], shape, profile=name)
    horizon, rate = int(row["num_prompts"]), float(row["total_rate"])
    return {
        "model": row["model"],
        "rate": rate,
        "profile": name,
        "measured": float(row["attain_both_pct_real"]),
        "theirs": float(row["simdistserve_synth_attain_both_pct"]),
        "formulas": 100 * by_formulas(setup, horizon, rate)[2],
        "simulated": 100 * by_simulation(setup, horizon, rate, max(3000 // horizon, 3))[2],
    }


def crossing(rates: Iterable[float], shares: Iterable[float]) -> float:
    """Rate at which shares fall through 90 per cent, on lines; the last rate if they do not."""
    pairs = sorted(zip(rates, shares, strict=True))
    for (r0, s0), (r1, s1) in itertools.pairwise(pairs):
        if s0 >= 90.0 > s1:
            return r0 + (r1 - r0) * (s0 - 90.0) / (s0 - s1)
    return pairs[-1][0]


def measured_table(cache: Path) -> str:
    """Mean and largest gap in points, and the implied goodput, by profile."""
    rows = resumed(cache / "measured.jsonl", measured_rows(), compute_measured)
    lines = [
        "| measured on A100s | by | mean gap, points | largest | goodput /s, measured | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for model in ("opt-13b", "opt-66b"):
        for name in PROFILES:
            part = [r for r in rows if r["model"] == model and r["profile"] == name]
            rates, real = [r["rate"] for r in part], [r["measured"] for r in part]
            goal = crossing(rates, real)
            by_all = ("formulas", "simulated") + (("theirs",) if name == "distserve" else ())
            for by in by_all:
                ours = [r[by] for r in part]
                gap = np.abs(np.subtract(ours, real))
                label = "DistServe's simulator" if by == "theirs" else f"{by}, profile {name}"
                found = crossing(rates, ours)
                lines.append(
                    f"| {model} chat | {label} | {gap.mean():.1f} | {gap.max():.1f} | "
                    f"{found:.2f}, {goal:.2f} | {found / goal:.2f} |"
                )
    return "\n".join(lines)


def compute_pooling(key: str) -> dict[str, Any]:
    """Goodput per GPU of shared pools, OPT-13B on single GPUs."""
    n, k, horizon, theirs = ast.literal_eval(key)
    setup = Setup("OPT-13B", "sharegpt", (1, 1, 1, 1), (n, k))
    runs = max(4000 // horizon, 1)

    def simulated(rate: float) -> float:
        return separately(by_simulation(setup, horizon, rate, runs))

    formulas = goodput(lambda r: separately(by_formulas(setup, horizon, r)), theirs * (n + k))
    return {
        "formulas": formulas / (n + k),
        "simulated": goodput(simulated, theirs * (n + k)) / (n + k),
        "theirs": theirs,
    }


def pooling_table(cache: Path) -> str:
    """Shared pools: goodput per GPU."""
    rows = rows_of("simulators/simdistserve_pooling.csv")
    keys = [
        str((int(r["n_prefill"]), int(r["n_decode"]), int(r["N"]), float(r["goodput_per_gpu"])))
        for r in rows
    ]
    lines = [
        "| shared pools, OPT-13B | DistServe's simulator /s/GPU | simulated | formulas |",
        "|---|---|---|---|",
    ]
    for r in resumed(cache / "pooling.jsonl", keys, compute_pooling):
        n, k, horizon, _ = ast.literal_eval(r["key"])
        lines.append(
            f"| {n}P{k}D, N={horizon} | {r['theirs']:.2f} | {r['simulated']:.2f} | "
            f"{r['formulas']:.2f} |"
        )
    return "\n".join(lines)
