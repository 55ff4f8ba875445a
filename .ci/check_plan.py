"""Checks the JSON answer of ``fluidserve plan``: there are deployments, and numbers are sound."""

import json
import math
import sys
from pathlib import Path
from typing import Any


def numbers(value: Any) -> list[float]:
    """Every number in a JSON value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [n for v in value for n in numbers(v)]
    return [value] if isinstance(value, int | float) else []


def refuse(word: str) -> float:
    """Python reads NaN and Infinity, JSON has neither."""
    raise ValueError(f"{word} in the answer")


answer = json.loads(Path(sys.argv[1]).read_text(), parse_constant=refuse)
rows = answer["deployments"]
assert rows, "no deployments"
assert all(
    math.isfinite(n) and n >= 0 for n in numbers([rows[0][k] for k in rows[0] if k != "simulated"])
)
assert rows[0]["goodput"] > 0, rows[0]
assert rows[0]["simulated"], "the first deployment is not cross-checked"
assert rows[0]["gpus"] == sum(p["replicas"] * p["tp"] * p["pp"] for p in rows[0]["pools"])
difference = rows[0]["goodput"] / rows[0]["simulated"]["goodput"] - 1
assert abs(difference) < 0.15, f"{difference:+.1%} off the simulation"
print(
    f"{rows[0]['label']}: {rows[0]['goodput']:.3g} requests/s, {difference:+.1%} off the simulation"
)
