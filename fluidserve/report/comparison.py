"""Several accelerators side by side."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from fluidserve.problem import Problem
from fluidserve.report.layout import CONFIDENCE_STYLE, plain_table
from fluidserve.report.numbers import three_digits
from fluidserve.report.tables import latency_columns, latency_headers, shown_tpot
from fluidserve.search.compare import Comparison
from fluidserve.search.plan import TIE

_LONGEST_REASON = 34


def comparison_table(problems: Sequence[Problem], found: Comparison) -> Table:
    """The best deployment of each accelerator, or why it has none, best first.

    Latencies are P90, or the percentile that a limit names, which then stands in the header.
    """
    best = {name: result.deployments[0] for name, result in found.plans.items()}
    labels = [row.deployment.label for row in best.values()]
    shown = [(row.ttft, shown_tpot(row), None, None) for row in best.values()]
    columns = latency_columns(shown, problems[0].slo)
    times = {name: [texts[i] for *_, texts in columns] for i, name in enumerate(best)}
    simulated = any(row.simulated is not None for row in best.values())

    table = plain_table("GPU")
    table.add_column("best deployment", min_width=max(map(len, labels)), max_width=_LONGEST_REASON)
    headers = ["GPUs", "req/s", "per\nGPU", *(["req/s\nsimul."] if simulated else [])]
    for header in (*headers, *latency_headers(columns)):
        table.add_column(header, justify="right", no_wrap=True)
    for header in ("binds", "step\ntimes", "trust"):
        table.add_column(header, no_wrap=True)
    for problem in problems:
        name = problem.gpu.name
        constants = "fitted" if problem.engine.profile.measured(name) else "assumed"
        if name not in best:
            empty = ["-"] * (len(headers) + 3)
            table.add_row(name, f"none: {found.failures[name]}", *empty, constants, "-")
            continue
        row = best[name]
        check = [three_digits(row.simulated.goodput)] if row.simulated else ["-"]
        table.add_row(
            name,
            row.deployment.label,
            str(row.gpus),
            three_digits(row.goodput),
            three_digits(row.goodput_per_gpu),
            *(check if simulated else []),
            *times[name],
            row.binding.replace("_", " "),
            constants,
            Text(row.confidence, style=CONFIDENCE_STYLE[row.confidence]),
        )
    return table


def comparison_sentences(problems: Sequence[Problem], found: Comparison) -> list[str]:
    """What the order means, why some have no answer, and whose step times were not measured."""
    first = next(iter(found.plans.values()))
    order = (
        f"most goodput within {first.budget} GPUs (within {TIE:.0%} of each other, fewer GPUs)"
        if first.rate is None and not first.fewest
        else f"fewest GPUs that carry {first.concurrency:,} users, then throughput"
        if first.rate is None
        else f"fewest GPUs that serve {first.rate:g} requests/s, then goodput"
    )
    sentences = [f"Order: {order}; nothing is said about prices."]
    for name, error in found.failures.items():
        reasons = "; ".join(f"{count:,} x {reason}" for reason, count in error.reasons.items())
        sentences.append(f"{name}: {reasons}. Nearest: {error.nearest}.")
    assumed = [p.gpu.name for p in problems if not p.engine.profile.measured(p.gpu.name)]
    if assumed:
        sentences.append(
            f"UNMEASURED: step times of {', '.join(assumed)} rest on assumed constants, so the "
            "order may turn once they are measured."
        )
    return sentences
