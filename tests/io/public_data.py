"""Where the public data that tests compare with lie, and why a test is skipped without them."""

import csv
import os
from pathlib import Path

import pytest

_root = os.environ.get("FLUIDSERVE_DATA")
DATA = Path(_root) / "data" if _root else None

needs_data = pytest.mark.skipif(
    DATA is None, reason="FLUIDSERVE_DATA is not set to the folder with the public data"
)


def config_files() -> list[Path]:
    return sorted((DATA / "hf_configs").glob("*.json")) if DATA else []


def model_rows() -> list[dict[str, str]]:
    if DATA is None:
        return []
    with (DATA / "models.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))
