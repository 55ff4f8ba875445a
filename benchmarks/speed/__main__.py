"""Prints the tables of docs/performance.md.

``python -m benchmarks.speed`` takes about five minutes on two cores; names of measurements leave
the others out. Times are the best of a few short repetitions, by the wall and by the CPU time of
all threads, as other work on the machine can only add to them. Compilation stands apart.
"""

import argparse
import os
import platform

import jax

from benchmarks.speed import parts, starts, subjects
from benchmarks.speed.registry import MEASUREMENTS, Finding, Row, Throughput
from fluidserve import runtime


def main() -> None:
    """Runs the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *MEASUREMENTS], help="only these")
    chosen = parser.parse_args().names or list(MEASUREMENTS)
    runtime.set_precision("f32")
    before = os.getloadavg()
    reference = subjects.exponentials()
    rows = [reference, *(row for name in chosen for row in MEASUREMENTS[name]())]
    print("\n".join(tables(rows, reference)))
    after = os.getloadavg()
    print(
        f"\nPython {platform.python_version()}, jax {jax.__version__}, {_processor()}, "
        f"{os.cpu_count()} cores; load average {before[0]:.1f} before, {after[0]:.1f} after."
    )


def tables(rows: list[Row], reference: Throughput) -> list[str]:
    """The lines of the tables: throughput, then the other findings."""
    unit = reference.time.cpu / reference.count
    lines = [
        "| what | per second | per CPU second | aim | exponentials each | compiled in |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        if isinstance(row, Throughput):
            time = row.time
            cells = (
                row.what,
                _number(row.count / time.wall),
                _number(row.count / time.cpu),
                _number(row.aim) if row.aim else "",
                _number(time.cpu / row.count / unit),
                f"{time.first:.1f} s" if time.first > 0.1 else "",
            )
            lines.append(f"| {' | '.join(cells)} |")
    findings = [f"| {row.what} | {row.value} |" for row in rows if isinstance(row, Finding)]
    return [*lines, "", "| what | found |", "|---|---|", *findings] if findings else lines


def _number(value: float) -> str:
    """Three digits, with M and k.

    Example:
      >>> _number(3_270_000.0), _number(41_200.0), _number(7.0)
      ('3.27 M', '41.2 k', '7.00')
    """
    for factor, letter in ((1e6, " M"), (1e3, " k"), (1.0, "")):
        if value >= factor:
            scaled = value / factor
            return f"{scaled:.{2 - min(len(str(int(scaled))) - 1, 2)}f}{letter}"
    return f"{value:.2g}"


def _processor() -> str:
    """Name of the processor, where the system tells it."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    assert parts.PARTS, starts.QUESTIONS  # the modules register what they measure
    main()
