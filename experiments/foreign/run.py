"""Comparisons with foreign simulators and measurements, as Markdown tables.

``FLUIDSERVE_DATA=FOLDER python experiments/foreign/run.py`` reads the data in FOLDER/data.
Results are kept in CACHE (by default ``foreign-results``), so that an interrupted run goes on.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import distserve
import dynamo

from fluidserve import runtime


def main() -> None:
    """Prints the tables that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", default=["dynamo", "measured", "pooling", "goodput"])
    parser.add_argument("--cache", type=Path, default=Path("foreign-results"))
    parser.add_argument("--every", type=int, default=1, help="each so many goodput rows")
    args = parser.parse_args()
    runtime.enable_cache()
    args.cache.mkdir(parents=True, exist_ok=True)
    known: dict[str, Callable[[], str]] = {
        "dynamo": lambda: dynamo.table(args.cache),
        "measured": lambda: distserve.measured_table(args.cache),
        "pooling": lambda: distserve.pooling_table(args.cache),
        "goodput": lambda: distserve.goodput_table(args.cache, args.every),
    }
    for name in args.tables:
        print(known[name]() + "\n", flush=True)


if __name__ == "__main__":
    main()
