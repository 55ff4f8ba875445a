"""What prompts and decode on one instance cost each other.

``python -m experiments.02_interference.run`` puts numbers into the README beside this file and
draws its pictures: OPT-13B and OPT-66B on A100, profile `paper`.
"""

import csv
import dataclasses
import functools
import os
from pathlib import Path

import numpy as np

from experiments.lecture import (
    A100,
    chat,
    comparison,
    figure_1,
    markdown,
    question,
    save_picture,
    simulated,
    summaries,
    value,
    write_blocks,
)
from fluidserve.eventsim import Records, attainment, simulate, simulate_first
from fluidserve.report.plots.figure import BATCHES, new_figure
from fluidserve.report.plots.panels import BLUE, GREEN, GREY, ORANGE, draw_interference
from fluidserve.report.plots.points import interference
from fluidserve.search.plan import analyse
from fluidserve.specs.applications import synthetic_workload
from fluidserve.specs.deployment import Pool, parse_label
from fluidserve.timing.chunking import reread_tokens
from fluidserve.timing.interference import iteration_time
from fluidserve.timing.request import tpot_with_stalls

from .budgets import CONTEXT, Budgets, budget_table, budgets_of, draw_budgets
from .fleets import GPUS, WANTED, Fleet, draw_fleets, fleet_table, fleets

HERE = Path(__file__).parent
PIECES = (0, 256, 512, 1024, 2048)
TPS = (1, 2, 4)
CHAT_RATE = 1.5
KINDS = {"1C tp1": "prompts first", "1S tp1 b512": "chunked", "2P1D tp1/tp1": "disaggregated"}
COLOURS = (ORANGE, GREEN, BLUE)
MANY = 16
"""Instances of the other pool, so that one pool sets goodput by itself."""


def iteration_table() -> str:
    """Iterations with and without a prompt inside."""
    problem = question("OPT-13B", synthetic_workload(CONTEXT - 100, 201), 1.0, 0.1)
    lines = []
    for tp in TPS:
        instance = problem.instance(tp, 1)
        for batch in BATCHES:
            times = [iteration_time(instance, float(batch), float(CONTEXT), c) for c in PIECES]
            lines.append([tp, batch, *(f"{1e3 * float(t):.1f} ms" for t in times)])
    names = [f"{c:,} tokens" if c else "decode alone" for c in PIECES]
    return markdown(["tp", "batch", *names], lines)


def served(label: str, requests: int = 8000) -> Records:
    """Chat at `CHAT_RATE`, with the gaps between tokens."""
    problem = chat()
    system = problem.system(parse_label(label, gpu=A100.name))
    return simulate(
        system, problem.workload, CHAT_RATE, requests=requests, seed=0, record_gaps=True
    )


def gaps_of(records: Records) -> np.ndarray:
    """All gaps between tokens of a run, s."""
    assert records.gaps is not None
    return records.gaps.values


@functools.cache
def formula_p99(label: str) -> float:
    """P99 of the gaps by the formulas, s."""
    problem = chat()
    problem = dataclasses.replace(problem, slo=dataclasses.replace(problem.slo, itl=1.0))
    row = analyse(problem, parse_label(label, gpu=A100.name), CHAT_RATE)
    assert row.itl is not None
    return row.itl.p99


def longest_stalls() -> np.ndarray:
    """The longest gap of each of 20 runs of 500 requests, prompts first, s."""
    problem = chat()
    runs = simulate_first(
        problem.system(parse_label("1C tp1", gpu=A100.name)),
        problem.workload, CHAT_RATE, horizon=500, runs=20, record_gaps=True,
    )  # fmt: skip
    return np.array([gaps_of(r).max() for r in runs])


def stall_table(runs: dict[str, Records]) -> str:
    """Gaps between tokens of the three ways to serve."""
    lines = []
    for label, records in runs.items():
        window = records.window()
        assert window.gaps is not None
        stalled = np.mean(window.gaps.longest() > 0.2)
        found = np.quantile(window.gaps.values, [0.5, 0.9, 0.99, 0.999, 1.0])
        lines.append(
            [
                f"{KINDS[label]}, `{label}`",
                *(f"{1e3 * t:.0f}" for t in found),
                f"{1e3 * formula_p99(label):.0f}",
                f"{stalled:.0%}",
                f"{1e3 * np.quantile(window.ttft, 0.9):.0f}",
                f"{attainment(window, chat().slo):.0%}",
            ]
        )
    header = ["gaps, ms", "P50", "P90", "P99", "P99.9", "longest", "P99, formulas"]
    return markdown([*header, "requests with one > 200 ms", "TTFT P90, ms", "in time"], lines)


def draw_iterations() -> None:
    """Iterations with prompts inside."""
    problem = question("OPT-13B", synthetic_workload(CONTEXT - 100, 201), 1.0, 0.1)
    figure, axes = new_figure(len(TPS), rows=1)
    for ax, tp in zip(axes[0], TPS, strict=True):
        pool = Pool(replicas=1, tp=tp, pp=1, gpu=A100.name)
        draw_interference(ax, interference(problem, pool, BATCHES), pool)
    save_picture(figure, HERE / "iterations.png")


def draw_stalls(runs: dict[str, Records]) -> None:
    """All gaps, and one answer as its reader sees it."""
    figure, axes = new_figure(2, rows=1)
    above, reader = axes[0]
    first = next(iter(runs.values()))
    assert first.gaps is not None
    several = first.n_out > 100
    worst = np.array([first.gaps.of(i).max() if several[i] else 0.0 for i in range(500)])
    chosen = int(worst.argmax())
    for (label, records), colour in zip(runs.items(), COLOURS, strict=True):
        gaps, name = gaps_of(records.window()), f"{KINDS[label]}, {label}"
        share = np.geomspace(1.0 / len(gaps), 1.0, 300)
        above.loglog(1e3 * np.quantile(gaps, 1.0 - share), share, color=colour, label=name)
        assert records.gaps is not None
        since = np.concatenate([[0.0], np.cumsum(records.gaps.of(chosen))])
        reader.step(since, np.arange(1, len(since) + 1), where="post", color=colour, label=name)
    above.axhline(0.01, color=GREY, ls=":", lw=1, label="P99")
    ticks = [10, 20, 50, 100, 200, 500, 1000]
    above.set_xticks(ticks, [str(t) for t in ticks])
    above.minorticks_off()
    above.set(xlabel="gap, ms", ylabel="share of the gaps above", title="Gaps between tokens")
    reader.set(
        xlabel="s after the first token", ylabel="tokens", title="The same answer, as it arrives"
    )
    reader.set_xlim(left=0)
    reader.set_ylim(bottom=0)
    above.legend(fontsize=8, loc="upper right")
    reader.legend(fontsize=8, loc="lower right")
    save_picture(figure, HERE / "stalls.png")


def rows_of(runs: dict[str, Records], short: Budgets, long: Budgets) -> dict[str, float | str]:
    """Our numbers for the lecture's rows on interference."""
    one = chat().instance(1, 1)
    mixed, alone = (float(iteration_time(one, 32.0, CONTEXT, c)) for c in (1024.0, 0.0))
    p99 = {label: float(np.quantile(gaps_of(r.window()), 0.99)) for label, r in runs.items()}
    best, worst = max(long.gain, key=long.gain.__getitem__), max(short.gain.values())
    stalls = longest_stalls()
    return {
        "interference-decode-only": alone,
        "interference-mixed": mixed,
        "stall-max": f"{stalls.mean():.2f} s on average, {stalls.min():.2f}-{stalls.max():.2f}",
        "tbt-p99-coloc": p99["1C tp1"],
        "tbt-p99-chunked": p99["1S tp1 b512"],
        "tbt-p99-disagg": p99["2P1D tp1/tp1"],
        "chunk-reread-256": reread_tokens(2048, 256),
        "chunk-reread-512": reread_tokens(4096, 512),
        "chunk-reread-1024": reread_tokens(4096, 1024),
        "chunk-reread-ratio-512": reread_tokens(4096, 512) / 4096,
        "chunk-reread-ratio-1024": reread_tokens(4096, 1024) / 4096,
        "chunk-helps-summarization": f"{long.gain[best]:.2f} (tp 4, budget {best})",
        "chunk-hurts-chat": f"{worst:.2f} with the best of the budgets",
        "coloc-goodput": simulated(figure_1(), "1C tp1", 4.7).value,
        "prefill-only-goodput": simulated(figure_1(), f"1P{MANY}D tp1/tp1", 10.6).value,
        "decode-only-goodput": simulated(figure_1(), f"{MANY}P1D tp1/tp1", 30.5).value,
        "ex2-stall": float(tpot_with_stalls(0.04, 0.3, 0.05)),
    }


def papers(folder: Path, ours: dict[str, float | str], short: Budgets, long: Budgets) -> str:
    """Ratios that DistServe measured beside ours and the lecture's."""
    with (folder / "data" / "simulators" / "distserve_paper_tables.csv").open() as file:
        table = {(r["table"], r["field1"], r["field2"]): r["value"] for r in csv.DictReader(file)}

    def figure(name: str) -> float:
        return float(table["fig1", "OPT-13B 512/64 1xA100", f"{name} rps"])

    def pieces(application: str) -> float:
        found = table["goodput90_per_gpu", application, "distserve/vllm/deepspeed"]
        _, first, chunked = map(float, found.split("/"))
        return chunked / first

    names = ("colocated goodput", "prefill-only", "decode-only")
    ids = ("coloc-goodput", "prefill-only-goodput", "decode-only-goodput")
    measured, lecture = [figure(n) for n in names], [value(i) for i in ids]
    our = [float(ours[i]) for i in ids]
    lines = [
        [f"{name}, requests/s", f"{m:g}", f"{said:g}", f"{o:.2f}"]
        for name, m, said, o in zip(names, measured, lecture, our, strict=True)
    ]
    lines.append(
        ["GPUs for both phases together over apart", *(_over(x) for x in (measured, lecture, our))]
    )
    helps = float(value("chunk-helps-summarization"))
    gains = (("chat, OPT-13B", "OPT-13B ShareGPT", "below 1", short),)
    for name, application, said, found in (
        *gains,
        ("summaries, OPT-66B", "OPT-66B LongBench", f"{helps:g}", long),
    ):
        best = max(found.gain.values())
        cells = [f"{pieces(application):.2f}", said, f"{best:.2f}"]
        lines.append([f"chunked over prompts first, {name}", *cells])
    return markdown(["what", "DistServe, measured", "lecture", "ours"], lines)


def _over(goodputs: list[float]) -> str:
    """GPUs that requests take together, over what their phases take on GPUs of their own."""
    together, prefill, decode = goodputs
    return f"{(1 / together) / (1 / prefill + 1 / decode):.2f}"


def claim(ours: dict[str, float | str], short: Budgets, long: Budgets, found: list[Fleet]) -> str:
    """What is claimed, in numbers."""
    alone, mixed = float(ours["interference-decode-only"]), float(ours["interference-mixed"])
    here = next(f for f in found if f.scale == 1.0)
    return (
        f"A decode step of 32 requests takes {1e3 * alone:.0f} ms on one A100, and "
        f"{1e3 * mixed:.0f} ms with a prompt of 1,024 tokens inside: everyone's token is "
        f"{mixed / alone:.1f} times as late. Pieces trade this against TTFT: the best budget "
        f"serves {max(long.gain.values()):.1f} times the summaries of prompts first, and "
        f"{max(short.gain.values()):.2f} times the chats. With prompts of 512 and answers of 64 "
        f"tokens {WANTED:g} requests/s take {here.gpus['colocated']:.1f} GPUs with prompts first, "
        f"{here.gpus['chunked']:.1f} chunked and {here.gpus['disaggregated']:.1f} disaggregated "
        f"where {GPUS} GPUs share the traffic, and {WANTED / float(ours['coloc-goodput']):.1f} "
        "with prompts first where each has its own."
    )


def main() -> None:
    """Writes the README's numbers and draws the pictures."""
    runs = {label: served(label) for label in KINDS}
    short, long = budgets_of(chat(), 1, 1.9, seeds=6), budgets_of(summaries(), 4, 1.6)
    found = fleets()
    ours = rows_of(runs, short, long)
    blocks = {
        "claim": claim(ours, short, long, found),
        "iterations": iteration_table(),
        "stalls": stall_table(runs),
        "budgets": budget_table(short, long),
        "fleets": fleet_table(found),
        "rows": comparison(ours),
    }
    if folder := os.environ.get("FLUIDSERVE_DATA"):
        blocks["papers"] = papers(Path(folder), ours, short, long)
    write_blocks(HERE, blocks)
    draw_iterations()
    draw_stalls(runs)
    draw_budgets(HERE / "budgets.png", short, long)
    draw_fleets(HERE / "fleets.png", found)


if __name__ == "__main__":
    main()
