"""The best deployment of each kind side by side, and which of them wins by how much and why."""

from typing import Any

from rich.table import Table
from rich.text import Text

from fluidserve.problem import Problem
from fluidserve.report.layout import CONFIDENCE_STYLE, plain_table
from fluidserve.report.numbers import three_digits
from fluidserve.report.tables import latency_columns, latency_headers, shown_tpot
from fluidserve.results import DeploymentResult, PlanResult
from fluidserve.search.plan import TIE
from fluidserve.specs.deployment import Kind
from fluidserve.specs.slo import Slo

_HOLDS_BACK = {
    "ttft": "prompts wait too long",
    "tpot": "tokens come too slowly",
    "e2e": "answers take too long",
    "itl": "tokens stall",
    "decode_slots": "KV slots run out",
    "prefill_capacity": "the prefill pool is full",
    "decode_capacity": "the decode pool is full",
    "capacity": "the instances are full",
    "link": "the KV link is full",
    "prefill_memory": "finished prompts fill the prefill memory",
}


def kinds_parts(problem: Problem, result: PlanResult) -> list[Any]:
    """A table and a sentence where several kinds were compared; else nothing."""
    if len(result.best_of_kind) + len(result.failed_kinds) < 2:
        return []
    ranked = by_kind(result)
    return [kinds_table(ranked, problem.slo), *kinds_sentences(result, ranked)]


def by_kind(result: PlanResult) -> dict[Kind, DeploymentResult]:
    """The best of each kind, the best kind first, as the question ranks deployments."""

    def worth(row: DeploymentResult) -> tuple[float, float]:
        least = result.rate is not None or result.fewest
        return (row.gpus if least else 0, -row.goodput)

    pairs = sorted(result.best_of_kind.items(), key=lambda pair: worth(pair[1]))
    return dict(pairs)


def kinds_table(ranked: dict[Kind, DeploymentResult], slo: Slo) -> Table:
    """One line for each kind: its best deployment within the same budget."""
    rows = list(ranked.values())
    columns = latency_columns([(r.ttft, shown_tpot(r), r.e2e, r.itl) for r in rows], slo)
    table = plain_table(
        "kind",
        *("best", "GPUs", "req/s", "per\nGPU", "of the\nbest"),
        *latency_headers(columns),
    )
    table.add_column("binds", min_width=8)
    table.add_column("trust", no_wrap=True)
    for i, (kind, row) in enumerate(ranked.items()):
        table.add_row(
            kind,
            row.deployment.label,
            str(row.gpus),
            three_digits(row.goodput),
            three_digits(row.goodput_per_gpu),
            f"{row.goodput_per_gpu / rows[0].goodput_per_gpu:.0%}",
            *(texts[i] for *_, texts in columns),
            row.binding.replace("_", " "),
            Text(row.confidence, style=CONFIDENCE_STYLE[row.confidence]),
        )
    return table


def kinds_sentences(result: PlanResult, ranked: dict[Kind, DeploymentResult]) -> list[str]:
    """Which kind wins by how much, what holds the others back, and which have no answer."""
    (first, best), *others = ranked.items()
    told = []
    for kind, row in others:
        gain = best.goodput_per_gpu / row.goodput_per_gpu - 1.0
        why = _HOLDS_BACK.get(row.binding, "")
        reason = f" ({kind}: {why})" if why else ""
        if abs(gain) <= TIE:
            told.append(f"cannot be told from {kind}")
        else:
            much = f"{abs(gain):.0%} {'more' if gain > 0 else 'less'}"
            told.append(f"serves {much} per GPU than {kind}{reason}")
    sentences = []
    if told:
        sentences.append(f"{first.capitalize()} {', '.join(told)}.")
    sentences += [f"No {kind} deployment: {why}." for kind, why in result.failed_kinds.items()]
    return sentences
