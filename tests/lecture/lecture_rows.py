"""The lecture's acceptance table, and the machine it speaks of: the paper profile on an A100."""

import csv
import dataclasses
import re
from pathlib import Path

import pytest

from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.timing.instance import Instance, build_instance
from fluidserve.timing.profile import load_profile

TABLE = Path(__file__).parents[1] / "lecture.csv"


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table."""

    id: str
    section: str
    kind: str
    setup: str
    quantity: str
    value: str
    unit: str
    tolerance: str

    @property
    def number(self) -> float:
        """The last number of the value: all of it, except in ``5P2D, 4.29``."""
        return float(re.findall(r"[-+]?[\d.]+(?:e[-+]?\d+)?", self.value)[-1])

    @property
    def expected(self):
        """The value in the row's unit, to compare with ``==`` within the row's tolerance."""
        if self.tolerance == "exact":
            return pytest.approx(self.number, rel=1e-9)
        return pytest.approx(self.number, rel=float(self.tolerance.removesuffix("%")) / 100)


def rows() -> list[Row]:
    with TABLE.open(newline="", encoding="utf-8") as file:
        return [Row(**line) for line in csv.DictReader(file)]


def row(id: str) -> Row:
    return next(r for r in rows() if r.id == id)


PROFILE = load_profile("paper")
A100 = find_gpu("A100-SXM4-80GB")
OPT_13B, OPT_66B, OPT_175B = (find_model(f"OPT-{size}") for size in ("13B", "66B", "175B"))


def instance(model, *, tp=1, pp=1) -> Instance:
    utilization = PROFILE.memory_utilization
    return build_instance(model, A100, tp=tp, pp=pp, profile=PROFILE, utilization=utilization)
