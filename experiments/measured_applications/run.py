"""Tables of the measured applications, and what planning with them costs against their traces.

``FLUIDSERVE_DATA=FOLDER python experiments/measured_applications/run.py`` reads the traces in
FOLDER/data/traces and prints ``fluidserve/specs/catalog/measured_applications.toml``; with
``--compare`` it prints goodputs with the trace's own pairs of lengths, with the pairs torn apart
and with the table instead, all under Poisson arrivals, as a Markdown table.
"""

import dataclasses
import math
import os
import sys
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.io.prefix import prefix_reuse
from fluidserve.io.trace import Trace, trace_workload
from fluidserve.io.traces import read_trace
from fluidserve.problem import Problem, engine_for
from fluidserve.search.plan import analyse, plan
from fluidserve.specs.applications import find_application
from fluidserve.specs.slo import Slo
from fluidserve.specs.tabulated import dependence, tabulated
from fluidserve.specs.workload import JointLengths, Peak, Workload
from fluidserve.timing.profile import load_profile

CELLS, DEPENDENCE_CELLS = 48, 8
AZURE = "AzurePublicDataset at commit b469a113, AzureLLMInferenceTrace_{}.csv: {} requests"
TRACES = {
    "azure-conversation": (
        "azure2023_conv.csv.gz",
        "conversations with an LLM service in Azure, 2023",
        AZURE.format("conv", "19,366"),
        "CC-BY 4.0, Microsoft",
    ),
    "azure-code": (
        "azure2023_code.csv.gz",
        "requests to an LLM service for code in Azure, 2023",
        AZURE.format("code", "8,819"),
        "CC-BY 4.0, Microsoft",
    ),
    "mooncake-conversation": (
        "mooncake_fast25_conversation.jsonl.gz",
        "conversations with Kimi, one hour",
        "kvcache-ai/Mooncake at commit 3b5a5941, FAST25-release: 12,031 requests, clock of 3 s",
        "Apache-2.0",
    ),
}
ALIASES = {
    "azure-conversation": ["azure-conv"],
    "azure-code": [],
    "mooncake-conversation": ["mooncake"],
}
HEADER = """\
# Applications measured from public traces: quantiles, not requests.
#
# Printed by experiments/measured_applications/run.py. tokens are the quantiles at the probabilities
# 1 - (1 - k/48)**2.2, k = 0..48, from the shortest to the longest; mean is that of the trace. joint
# counts requests by the ranks of prompt (rows) and output, cut at 1 - (1 - k/8)**2.2. Rates in
# requests/s: the mean, and the busiest windows with the coefficient of variation of their gaps.
# arrival_cv is that of all gaps, dispersion_60s the variance over mean of the arrivals per minute.
"""


def entry(title: str, trace: Trace) -> str:
    """One application of the catalog."""
    workload = trace_workload(trace)
    _, description, source, licence = TRACES[title]
    lines = [
        f"[{title}]",
        f"aliases = [{', '.join(map(quoted, ALIASES[title]))}]",
        f"description = {quoted(description)}",
        f"source = {quoted(source)}",
        f"licence = {quoted(licence)}",
        f"rate = {float(workload.rate):.5g}",
        f"arrival_cv = {math.sqrt(float(workload.arrival_scv)):.4g}",
        f"dispersion_60s = {float(workload.dispersion):.4g}",
    ]
    for name, peak in (("peak_60s", workload.peak_60s), ("peak_10s", workload.peak_10s)):
        assert isinstance(peak, Peak)
        cv = math.sqrt(float(peak.arrival_scv))
        window, rate = float(peak.window), float(peak.rate)
        lines.append(
            f"{name} = {{ window = {window:.5g}, rate = {rate:.5g}, arrival_cv = {cv:.4g} }}"
        )
    reuse = prefix_reuse(trace)
    if reuse is not None:
        lines.append(f"prefix_hit_bound = {reuse.tokens:.4g}")
    joint = dependence(trace.n_in, trace.n_out, DEPENDENCE_CELLS)
    rows = [f"  [{', '.join(map(str, row))}]," for row in joint.tolist()]
    lines += ["joint = [", *rows, "]"]
    for side, lengths in (("n_in", trace.n_in), ("n_out", trace.n_out)):
        table = tabulated(lengths, CELLS)
        tokens = [f"{int(n)}" for n in np.asarray(table.tokens)]
        lines += ["", f"[{title}.{side}]", f"mean = {float(table.mean):.7g}", "tokens = ["]
        lines += ["  " + ", ".join(tokens[i : i + 14]) + "," for i in range(0, len(tokens), 14)]
        lines.append("]")
    return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """A TOML string."""
    return f'"{text}"'


QUESTIONS = (
    ("azure-conversation", "Llama-3.1-70B", 2.0, 0.05),
    ("azure-conversation", "Llama-3.1-8B", 0.5, 0.02),
    ("azure-code", "Llama-3.1-70B", 2.0, 0.05),
    ("azure-code", "Llama-3.1-8B", 0.5, 0.02),
    ("mooncake-conversation", "Llama-3.1-70B", 30.0, 0.1),
    ("mooncake-conversation", "Llama-3.1-8B", 10.0, 0.05),
)


def compare(title: str, model: str, ttft: float, tpot: float, trace: Trace) -> str:
    """One row: the best plan with the trace's lengths, and its goodput with other lengths."""
    whole = trace_workload(trace)
    steady = Workload(name=title, lengths=whole.lengths)
    shuffled = np.random.default_rng(0).permutation(trace.n_out)
    torn = dataclasses.replace(steady, lengths=JointLengths(n_in=trace.n_in, n_out=shuffled))
    table = dataclasses.replace(steady, lengths=find_application(title).lengths)
    gpu = find_gpu("H100")
    engine = engine_for(load_profile("default"), gpu)
    slo = Slo(ttft=ttft, tpot=tpot, attainment=0.9)

    def question(workload: Workload) -> Problem:
        return Problem(model=find_model(model), gpu=gpu, workload=workload, slo=slo, engine=engine)

    best = plan(question(steady), budget=16, top=5).deployments
    errors = []
    for other in (torn, table):
        ratios = [analyse(question(other), r.deployment, None).goodput / r.goodput for r in best]
        errors.append(max((r - 1.0 for r in ratios), key=abs))
    chosen = plan(question(table), budget=16, top=1).deployments[0].deployment
    lost = analyse(question(steady), chosen, None).goodput / best[0].goodput - 1.0
    rank = float(spearmanr(trace.n_in, trace.n_out).statistic)
    return (
        f"| {title} | {model} | {rank:+.2f} | {best[0].deployment.label} | {best[0].goodput:.3g} "
        f"| {errors[0]:+.1%} | {errors[1]:+.1%} | {chosen.label} | {lost:+.1%} |"
    )


def main() -> None:
    """Prints the catalog, or the comparison."""
    folder = Path(os.environ["FLUIDSERVE_DATA"]) / "data" / "traces"
    traces = {title: read_trace(folder / facts[0]) for title, facts in TRACES.items()}
    if "--compare" in sys.argv:
        print(
            "| application | model | rank correlation | best with the trace | goodput /s "
            "| pairs torn apart | table | best with the table | its loss |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        for title, *rest in QUESTIONS:
            print(compare(title, *rest, traces[title]), flush=True)
        return
    print(HEADER + "\n" + "\n".join(entry(title, trace) for title, trace in traces.items()), end="")


if __name__ == "__main__":
    main()
