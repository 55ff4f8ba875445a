"""Splits of a budget over another planner's own worker tables.

AIConfigurator 0.12.0 rates a split by ``min(0.9 x prefill, 0.92 y decode)`` and searches a part of
the splits only. The search over all of them finds what an exhaustive one finds.
"""

import csv
import gzip
from collections import defaultdict

import pytest
from public_data import DATA, needs_data

from fluidserve.deploy.ratio import pooled_goodput

MATCHED = 0.9, 0.92


def table(name):
    assert DATA is not None
    with gzip.open(DATA / "oracles" / f"{name}.csv.gz", "rt") as file:
        return list(csv.DictReader(file))


def workers():
    """Per case and role: GPUs of a worker and the requests/s that it sustains within the SLO."""
    tpot = {r["case"]: float(r["tpot_ms"]) for r in table("aic_vs_bruteforce")}
    found = defaultdict(dict)
    for r in table("aic_disagg_workers"):
        if r["role"] == "prefill" or float(r["tpot_ms"]) <= tpot[r["case"]]:
            here, gpus = found[r["case"], r["role"]], int(r["gpus_per_worker"])
            here[gpus] = max(here.get(gpus, 0.0), float(r["seq_s_per_worker"]))
    return found


def best(prefill, decode, budget):
    """The best split of a budget: requests/s, GPUs in use, and what is deployed."""
    found = (0.0, 0, ())
    for p, p_rate in prefill.items():
        for d, d_rate in decode.items():
            for n in range(1, budget // p + 1):
                k = (budget - n * p) // d
                rate = pooled_goodput(MATCHED[0] * p_rate, MATCHED[1] * d_rate, n, k)
                found = max(found, (rate, n * p + k * d, (n, p, k, d)))
    return found


@needs_data
def test_every_budget_finds_the_exhaustive_optimum():
    pools = workers()
    for row in table("aic_vs_bruteforce"):
        split = best(
            pools[row["case"], "prefill"], pools[row["case"], "decode"], int(row["total_gpus"])
        )
        assert split[0] == pytest.approx(float(row["exhaustive_req_s"]), rel=2e-3, abs=1e-3)


@needs_data
def test_the_question_of_32_and_12_gpus():
    """3P tp4 + 5D tp4 serve 16.6/s on 32 GPUs; 1P tp4 + 1D tp8 beat aggregated workers on 12."""
    pools = workers()
    pair = pools["qwen32_h200_trt_300_10", "prefill"], pools["qwen32_h200_trt_300_10", "decode"]
    rate, gpus, split = best(*pair, 32)
    assert rate >= 16.6
    assert (gpus, split) == (32, (3, 4, 5, 4))
    rate, gpus, _ = best(*pair, 12)
    assert gpus == 12
    named = pooled_goodput(MATCHED[0] * pair[0][4], MATCHED[1] * pair[1][8], 1, 1)
    assert named == pytest.approx(rate)  # 2D tp4 serve as much as 1D tp8: prefill limits both
    tokens = rate * 500 / 12
    assert tokens == pytest.approx(261.5, rel=0.01)
    assert tokens > 210.5  # what it finds for aggregated workers
