"""Whether a model fits, as a table and in sentences."""

from collections.abc import Sequence

from rich.table import Table

from fluidserve.report.layout import plain_table
from fluidserve.report.numbers import three_digits
from fluidserve.search.fit import Fit, Question
from fluidserve.units import format_context

_GB = 1e9
_UNMEASURED = "UNMEASURED: nothing was measured on {}; only the numbers of its memory count here."


def fit_table(found: Sequence[Fit], best: Fit) -> Table:
    """Every split of an instance; an asterisk marks the smallest that is enough."""
    table = plain_table(
        "instance", "GPUs", "weights\nGB/GPU", "left for KV\nGB/GPU", "KV\ntokens", "requests"
    )
    for fit in found:
        fitting = fit.room > 0
        table.add_row(
            f"tp{fit.tp} pp{fit.pp}" + ("*" if fit is best else ""),
            str(fit.gpus),
            three_digits(fit.weight_bytes / _GB),
            three_digits(fit.free_bytes / _GB) if fitting else "none",
            f"{fit.kv_tokens:,.0f}" if fitting else "-",
            f"{fit.concurrency:,.2f}" if fitting else "-",
        )
    return table


def fit_sentences(question: Question, best: Fit, users: int, most: int) -> list[str]:
    """The smallest instance, its room as engines print it, and what the memory has to hold."""
    model, gpu, share = question.model, question.gpu, question.utilization
    unmeasured = [] if question.profile.measured(gpu.name) else [_UNMEASURED.format(gpu.name)]
    memory = "data sheet" if question.profile.memory_of == "datasheet" else "driver"
    return [
        f"Smallest of at most {most} {gpu.name} that holds {users:,} "
        f"request{'s' if users > 1 else ''} of {format_context(question.context)}: tp{best.tp} "
        f"pp{best.pp}, {best.gpus} GPU{'s' if best.gpus > 1 else ''}.",
        f"GPU KV cache size: {best.kv_tokens:,.0f} tokens; maximum concurrency for "
        f"{question.context:,} tokens per request: {best.concurrency:,.2f}x.",
        f"{model.name}, weights {model.weight_dtype}, KV {model.kv_dtype}: the engine takes "
        f"{share:.0%} of the {best.memory_bytes / share / _GB:.1f} GB that the {memory} reports "
        "(--memory-utilization) for weights and KV. Activations, compiled graphs and "
        f"communication buffers have the other {1 - share:.0%}; an engine that counts them within "
        "its share has some GB less for KV.",
        *unmeasured,
    ]
