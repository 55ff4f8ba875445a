"""What a token budget costs a prompt, and what it does to goodput."""

import dataclasses
from pathlib import Path

from experiments.lecture import chat, markdown, plus_minus, save_picture, simulated
from fluidserve.eventsim import GoodputEstimate
from fluidserve.problem import Problem
from fluidserve.report.plots.figure import new_figure
from fluidserve.report.plots.panels import BLUE, GREEN, GREY, ORANGE, RED
from fluidserve.timing.chunking import reread_tokens
from fluidserve.timing.instance import Instance
from fluidserve.timing.interference import iteration_time

CONTEXT = 1000
"""Tokens of each request that decodes beside a prompt."""
BUDGETS = (256, 512, 1024, 2048)
LONG_PROMPT = 2048


@dataclasses.dataclass(frozen=True)
class Budgets:
    """Goodput of chunked prefill by token budget, and of prompts first, by simulation."""

    first: GoodputEstimate
    chunked: dict[int, GoodputEstimate]

    @property
    def gain(self) -> dict[int, float]:
        """Chunked over prompts first."""
        return {b: found.value / self.first.value for b, found in self.chunked.items()}


def budgets_of(problem: Problem, tp: int, guess: float, *, seeds: int = 3) -> Budgets:
    """Goodput on one instance."""

    def served(label: str, guess: float) -> GoodputEstimate:
        return simulated(problem, label, guess, requests=5000, seeds=seeds)

    first = served(f"1C tp{tp}", guess)
    return Budgets(first, {b: served(f"1S tp{tp} b{b}", first.value) for b in BUDGETS})


def chunked_prefill(instance: Instance, n_in: int, budget: int, batch: int = 0) -> float:
    """Time of a prompt in pieces, beside a decode batch that takes its tokens of each, s."""
    room, total = budget - batch, 0.0
    for before in range(0, n_in, room):
        piece = float(min(room, n_in - before))
        total += float(
            iteration_time(instance, float(batch), float(CONTEXT), piece, before=float(before))
        )
    return total


def budget_table(short: Budgets, long: Budgets) -> str:
    """What a token budget costs and gains."""
    one = chat().instance(1, 1)
    alone = float(one.prefill_time(float(LONG_PROMPT)))

    def goodput(found: GoodputEstimate, first: GoodputEstimate) -> str:
        return f"{plus_minus(found)} ({found.value / first.value:.2f})"

    lines = [
        [
            f"{b:,}",
            f"{reread_tokens(LONG_PROMPT, b):,}",
            f"{reread_tokens(LONG_PROMPT, b) / LONG_PROMPT:.1f}",
            f"{chunked_prefill(one, LONG_PROMPT, b) / alone:.2f}",
            f"{chunked_prefill(one, LONG_PROMPT, b, 32) / alone:.2f}",
            f"{1e3 * float(iteration_time(one, 32.0, CONTEXT, b - 32.0)):.0f} ms",
            goodput(short.chunked[b], short.first),
            goodput(long.chunked[b], long.first),
        ]
        for b in BUDGETS
    ]
    whole = float(iteration_time(one, 32.0, CONTEXT)) + alone
    last = ["prompts first", "0", "0.0", "1.00", "1.00", f"{1e3 * whole:.0f} ms"]
    lines.append([*last, f"{plus_minus(short.first)} (1)", f"{plus_minus(long.first)} (1)"])
    header = ["token budget", "KV tokens read again", "over the prompt", "prefill time, alone"]
    header += ["beside 32", "gap of those 32", "chat /s", "summaries, tp 4 /s"]
    return markdown(header, lines)


def draw_budgets(path: Path, short: Budgets, long: Budgets) -> None:
    """What pieces cost a prompt, and what they do to goodput."""
    figure, axes = new_figure(2, rows=1)
    cost, gain = axes[0]
    one = chat().instance(1, 1)
    for n_in, colour in ((755, BLUE), (LONG_PROMPT, GREEN), (4096, ORANGE)):
        alone = float(one.prefill_time(float(n_in)))
        for batch, style in ((0, ":"), (32, "-")):
            over = [chunked_prefill(one, n_in, b, batch) / alone for b in BUDGETS]
            name = f"{n_in:,} tokens" + (f", beside {batch}" if batch else ", alone")
            cost.plot(BUDGETS, over, "o" + style, ms=4, color=colour, label=name)
    cost.axhline(1.0, color=GREY, lw=1)
    cost.set(ylabel="prefill time over that in one piece", title="A prompt in pieces")
    for found, colour, name in (
        (short, BLUE, "chat, OPT-13B tp 1"),
        (long, GREEN, "summaries, OPT-66B tp 4"),
    ):
        gain.plot(BUDGETS, list(found.gain.values()), "o-", ms=4, color=colour, label=name)
    gain.axhline(1.0, color=RED, ls="--", lw=1, label="prompts first")
    gain.set(ylabel="goodput over that of prompts first", title="Chunked prefill")
    gain.set_ylim(bottom=0)
    for ax in axes[0]:
        ax.set_xscale("log", base=2)
        ax.set_xticks(BUDGETS, [f"{b:,}" for b in BUDGETS])
        ax.set_xlabel("token budget")
        ax.legend(fontsize=8)
    save_picture(figure, path)
