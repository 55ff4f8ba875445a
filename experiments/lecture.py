"""What the experiments on the lecture share: its rows, its machine, and how answers are written.

The lecture on disaggregated serving computes on paper GPUs; `tests/lecture.csv` lists what it
says. Experiments that follow it compute on the same machine, an A100 under the profile `paper`,
and put their numbers into their own README between two comments, so that no number is typed.
"""

import csv
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fluidserve.eventsim import GoodputEstimate, goodput
from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.problem import Problem, engine_for
from fluidserve.specs.applications import find_application, synthetic_workload
from fluidserve.specs.deployment import parse_label
from fluidserve.specs.slo import Slo
from fluidserve.specs.workload import Workload
from fluidserve.timing.profile import load_profile

ROOT = Path(__file__).parents[1]
PROFILE = load_profile("paper")
A100 = find_gpu("A100-SXM4-80GB")


def _table() -> dict[str, dict[str, str]]:
    with (ROOT / "tests" / "lecture.csv").open(newline="", encoding="utf-8") as file:
        return {line["id"]: line for line in csv.DictReader(file)}


ROWS = _table()


def value(id: str) -> float:
    """The last number of a row's value."""
    return float(re.findall(r"[-+]?[\d.]+(?:e[-+]?\d+)?", ROWS[id]["value"])[-1])


def question(
    model: str, workload: Workload, ttft: float, tpot: float, *, link: float = float("inf")
) -> Problem:
    """The lecture's machine asked for 90 % of the requests within limits, s; no link time."""
    return Problem(
        model=find_model(model),
        gpu=A100,
        workload=workload,
        slo=Slo(ttft=ttft, tpot=tpot, attainment=0.9),
        engine=engine_for(PROFILE, A100, link_bandwidth=link),
    )


def figure_1() -> Problem:
    """DistServe's first figure: OPT-13B, 512 prompt and 64 output tokens, 0.4 s and 40 ms."""
    return question("OPT-13B", synthetic_workload(512, 64), 0.4, 0.04)


def chat() -> Problem:
    """OPT-13B as a chatbot, 0.25 s and 100 ms."""
    return question("OPT-13B", find_application("chatbot"), 0.25, 0.1)


def code() -> Problem:
    """OPT-66B completing code, 0.125 s and 200 ms."""
    return question("OPT-66B", find_application("code-completion"), 0.125, 0.2)


def summaries() -> Problem:
    """OPT-66B summarizing, 15 s and 150 ms."""
    return question("OPT-66B", find_application("summarization"), 15.0, 0.15)


def simulated(
    problem: Problem, label: str, guess: float, *, requests: int = 6000, seeds: int = 3
) -> GoodputEstimate:
    """Goodput of a deployment by the event simulator, 1/s."""
    return goodput(
        problem.system(parse_label(label, gpu=problem.gpu.name)),
        problem.workload,
        problem.slo,
        guess=guess,
        requests=requests,
        seeds=range(seeds),
    )


def plus_minus(found: GoodputEstimate, over: float = 1.0) -> str:
    """A goodput with half its 95 % interval, both divided by `over`."""
    if not found.value:
        return "0"
    return f"{found.value / over:.3g} ±{(found.high - found.low) / 2 / over:.1g}"


def markdown(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    parts = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in parts)


def comparison(ours: Mapping[str, float | str]) -> str:
    """Rows of the lecture beside our numbers: a Markdown table.

    Args:
      ours: by the row's id; a text where the row is one.
    """
    tests = "".join(f.read_text("utf-8") for f in (ROOT / "tests" / "lecture").glob("test_*.py"))
    lines = []
    for id, found in ours.items():
        row = ROWS[id]
        unit = "" if row["unit"] in ("", "1") else f" {row['unit']}"
        said = "a trend" if row["value"] in ("1", "see quantity") else row["value"] + unit
        if isinstance(found, str):
            off = ""
        else:
            found = float(found)
            off = f"{found / value(id) - 1.0:+.1%}".replace("-0.0%", "0.0%").replace("+0.0", "0.0")
            found = f"{found:,.4g}" + unit if found < 1e4 else f"{found:,.0f}" + unit
        cited = "test" if f'"{id}"' in tests else "here only"
        lines.append([f"`{id}`", row["quantity"], said, found, off, row["tolerance"] or "", cited])
    header = ["row", "what", "lecture", "ours", "off by", "allowed", "held by"]
    return markdown(header, lines)


def write_blocks(folder: Path, blocks: Mapping[str, str]) -> None:
    """Puts texts into a folder's README, each between ``<!-- NAME -->`` and ``<!-- end -->``.

    Raises:
      ValueError: the README has no such place.
    """
    page = folder / "README.md"
    text = page.read_text("utf-8")
    for name, block in blocks.items():
        place = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.S)
        if not place.search(text):
            raise ValueError(f"{page}: no place for {name!r}")
        lines = block if block.startswith("|") else textwrap.fill(block, 110)
        text = place.sub(lambda m, b=lines: f"{m[1]}\n{b}\n\n{m[2]}", text)
        print(f"{lines}\n")
    page.write_text(text, "utf-8")


def save_picture(figure: Any, path: Path) -> None:
    """Writes a PNG, small enough to be kept."""
    figure.savefig(path, dpi=90, pil_kwargs={"optimize": True})
