"""Rows of a plan as a CSV file."""

import csv
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from fluidserve.io.files import complete_file
from fluidserve.results import DeploymentResult, Latency, Simulated


def write_csv(path: str, rows: Sequence[DeploymentResult]) -> None:
    """Writes one line for each deployment, all or nothing.

    The file appears under its name only when it is complete. Numbers that are not finite, and the
    simulation where there is none, are empty cells.

    Raises:
      InputError: the file cannot be written.
    """
    table = [flat_row(row) for row in rows]
    with (
        complete_file(path, "--csv") as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.DictWriter(file, fieldnames=list(table[0]))
        writer.writeheader()
        writer.writerows(table)


def flat_row(row: DeploymentResult) -> dict[str, Any]:
    """A deployment as one line: the unit of a column is the end of its name.

    Where instances do both phases their columns begin with ``both_``, and those of the pools are
    empty. Rates end in ``_per_s``, times in ``_s``; shares and counts have no ending.
    """
    line: dict[str, Any] = {"label": row.deployment.label, "kind": row.kind, "gpus": row.gpus}
    pools, parts = row.deployment.pools, ("replicas", "tp", "pp", "gpu")
    for role in ("prefill", "decode"):
        line |= {f"{role}_{x}": getattr(pools[role], x) if role in pools else "" for x in parts}
    both = pools.get(row.kind)
    line |= {f"both_{x}": getattr(both, x) if both else "" for x in parts}
    line |= {
        "token_budget": getattr(row.deployment, "token_budget", ""),
        "goodput_per_s": row.goodput,
        "goodput_per_gpu_per_s": row.goodput_per_gpu,
        "after_one_failure_per_s": row.after_one_failure,
        "rate_per_s": row.rate,
        "concurrency": "" if row.concurrency is None else row.concurrency,
        "output_tokens_per_s": row.output_token_rate,
        **_times("ttft", row.ttft),
        **_times("tpot", row.tpot),
        **_times("e2e", row.e2e),
        **_times("itl", row.itl),
        "attainment": row.attainment,
        "prefill_utilization": row.prefill_load,
        "link_utilization": row.link_load,
        "decode_utilization": row.decode_load,
        "batch": row.batch,
        "kv_use": row.kv_use,
        **{f"{name}_s": value for name, value in dataclasses.asdict(row.phases).items()},
        "binding": row.binding,
        "confidence": row.confidence,
        "confidence_reasons": "; ".join(row.reasons),
        "tied": row.tied,
        "refined_factor": row.refined.factor if row.refined else "",
        **_simulated(row.simulated),
        "replayed_rate_per_s": row.replayed.rate if row.replayed else "",
        "replayed_attainment": row.replayed.attainment if row.replayed else "",
    }
    return {
        name: "" if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in line.items()
    }


def _times(name: str, latency: Latency | None) -> dict[str, Any]:
    return {
        f"{name}_{part}_s": "" if latency is None else getattr(latency, part)
        for part in ("mean", "p50", "p90", "p99", "at_share")
    }


def _simulated(found: Simulated | None) -> dict[str, Any]:
    low, high = found.goodput_interval if found else ("", "")
    return {
        "simulated_goodput_per_s": found.goodput if found else "",
        "simulated_goodput_low_per_s": low,
        "simulated_goodput_high_per_s": high,
        "simulated_attainment": found.attainment if found else "",
        **_times("simulated_ttft", found.ttft if found else None),
        **_times("simulated_tpot", found.tpot if found else None),
        **_times("simulated_e2e", found.e2e if found else None),
        **_times("simulated_itl", found.itl if found else None),
    }
