"""The flags that the commands share, each written once.

All values travel as text to `fluidserve.io.schema`, which reads a configuration file the same way.
"""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

Options = dict[str, Any]
"""Annotations of typer by the name of the input."""


def takes(*groups: Options) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command that takes ``**flags`` the options of some groups; absent ones are None."""
    annotations = {name: hint for group in groups for name, hint in group.items()}
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
        for name, hint in annotations.items()
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        command.__dict__["__signature__"] = inspect.Signature(parameters)
        command.__annotations__ = annotations
        return command

    return decorate


def _options(panel: str, texts: dict[str, tuple[str, str]]) -> Options:
    """Options of one panel of the help: the placeholder of the value and the help text."""
    return {
        name: Annotated[
            str | None,
            typer.Option(metavar=metavar, help=text, rich_help_panel=panel, show_default=False),
        ]
        for name, (metavar, text) in texts.items()
    }


QUESTION = _options(
    "Question",
    {
        "model": ("NAME|PATH", "Model of the catalog, or a config.json or its directory."),
        "gpu": ("NAME|PATH", "GPU of the catalog, or a TOML file; a plan compares several, "
                "separated by commas."),
        "gpu_spec": ("NUMBERS", "A GPU without an entry, such as 'peak=989T, bandwidth=3.35TB/s, "
                     "memory=80GB, link=450GB/s'."),
        "gpus": ("N", "Budget: the most goodput within N GPUs."),
        "kind": ("KIND", "Compare all kinds (default), or only disaggregated, colocated or "
                 "chunked deployments."),
        "rate": ("R", "Requests/s to serve: the fewest GPUs that do."),
        "rate_of": ("mean|peak-60s|peak-10s", "The same for a rate of the traffic itself."),
        "concurrency": ("N", "Users of a closed loop, each with one request at a time; without "
                        "--gpus: the fewest GPUs that carry them."),
        "max_gpus": ("N", "Budget of such a question for the fewest GPUs (default 64)."),
        "config": ("FILE", "TOML file with these names as keys; flags go before it."),
    },
)  # fmt: skip


def _switch(panel: str, name: str, text: str) -> Any:
    """An option without a value."""
    option = typer.Option(f"--{name}", help=text, rich_help_panel=panel, show_default=False)
    return Annotated[bool | None, option]


OFFLINE = {
    "offline": _switch(
        "Question", "offline", "No limits: the most tokens/s, all requests there from the start."
    )
}
TRAFFIC = _options(
    "Traffic: --isl and --osl, or --app, or --trace",
    {
        "isl": ("N", "Mean prompt length, tokens."),
        "osl": ("N", "Mean output length, tokens."),
        "isl_cv": ("X", "Coefficient of variation of the prompt length (default 0)."),
        "osl_cv": ("X", "Coefficient of variation of the output length (default 0)."),
        "app": ("NAME", "chatbot, code-completion or summarization (assumed spread), or measured: "
                "azure-conversation, azure-code, mooncake-conversation."),
        "trace": ("FILE", "Recorded requests, CSV or JSON lines, plain or gzipped."),
        "arrival_cv": ("X", "Coefficient of variation between arrivals (default: 1, Poisson; "
                       "for a trace its own)."),
        "prefix_hit": ("X", "Share of the prompt tokens found in the prefix cache (default 0)."),
        "max_model_len": ("N", "Refuse requests of more than N tokens, prompt and output."),
    },
)  # fmt: skip
PROMISE = _options(
    "Promise: at least one limit",
    {
        "ttft": ("[pN:]TIME", "Limit on the time to first token: 300ms, or p95:300ms for 95% of "
                 "the requests."),
        "tpot": ("[pN:]TIME", "Limit on the time per output token, such as 50ms or p99:50ms."),
        "e2e": ("[pN:]TIME", "Limit on the time to the last token, such as 10s or p90:10s."),
        "itl": ("pN:TIME", "Limit on single gaps between tokens: p99:100ms for 99% of all gaps."),
        "attainment": ("X", "Share of requests that must meet the limits without a percentile "
                       "together (default 0.9)."),
        "horizon": ("N", "Judge the first N requests into an empty system (default: steady)."),
    },
)  # fmt: skip
ENGINE = _options(
    "Engine",
    {
        "profile": ("NAME|FILE", "Step times and habits: default, paper, vllm-0.2 or a TOML file."),
        "link": ("BANDWIDTH", "Between the pools, such as 200Gb/s (bits), 25GB/s (bytes) or inf; "
                 "default: the network of the GPU's node."),
        "first_token": ("prefill|decode", "Where the first token leaves (default: the profile's)."),
        "weight_dtype": ("T", "Format of the weights (default: the model's)."),
        "kv_dtype": ("T", "Format of the KV cache (default: the model's)."),
        "memory_utilization": ("X", "Share of the memory in use (default: the profile's)."),
        "max_batch": ("N", "Most requests that a decode instance holds (default 1024)."),
        "prefill_tokens": ("M", "Take waiting prompts into one prefill pass while their tokens fit "
                           "into M (default: one prompt at a time)."),
        "prefill_batch": ("N", "Most prompts in one prefill pass (default 1; 1024 with "
                          "--prefill-tokens)."),
        "dispatch": ("RULE", "How pools spread requests: shared (default), jsq, round-robin or "
                     "random."),
        "token_budgets": ("N,N", "Token budgets of chunked prefill to compare (default "
                          "256,512,...,8192)."),
        "kv_policy": ("reserve|preempt", "KV that a request needs to be admitted where one "
                      "instance does both phases: all of it (default), or its prompt's."),
    },
)  # fmt: skip
FIT = {name: QUESTION[name] for name in ("model", "gpu_spec", "config")} | _options(
    "Question",
    {
        "gpu": ("NAME|PATH", "GPU of the catalog, or a TOML file."),
        "gpus": ("N", "Most GPUs of one instance (default: those of a node)."),
        "context": ("TOKENS", "Tokens of a request, such as 128k = 131072 (default: the longest "
                    "that the model was built for)."),
        "users": ("N", "Requests of that length to hold at once (default 1)."),
    },
)  # fmt: skip
MEMORY = {
    name: ENGINE[name] for name in ("profile", "weight_dtype", "kv_dtype", "memory_utilization")
}
SIMULATION = _options(
    "Simulation",
    {
        "deployment": ("LABEL", "Such as '3P1D tp2/tp4', '4C tp2pp2' or '4S tp2 b512'."),
        "requests": ("N", "Requests to simulate (default 20000)."),
        "seed": ("N", "Seed of lengths and arrivals (default 0)."),
    },
)
CURVE = _options(
    "Curves",
    {
        "deployment": ("LABELS", "Deployments, separated by commas (default: the best of each "
                       "kind within --gpus)."),
        "rates": ("R,R", "Requests/s (default: 12 rates up to beyond the largest goodput)."),
        "requests": ("N", "Requests of each simulated point (default: what its error needs)."),
    },
)  # fmt: skip
SCALED = {name: QUESTION[name] for name in ("model", "gpu", "gpu_spec", "gpus", "kind", "config")}
"""Of a question, what there is besides the rate per GPU."""
SCALE = _options(
    "Scale",
    {
        "deployment": ("LABELS", "Deployments, separated by commas (default: the best of each "
                       "kind within --gpus)."),
        "rates_per_gpu": ("R,R", "Requests/s that each GPU gets, one table for each."),
    },
)  # fmt: skip
ANSWER = _options(
    "Answer",
    {
        "top": ("K", "Deployments to show (default 10)."),
        "verify": ("K", "Deployments to cross-check by simulation (default 3 in a plan)."),
        "csv": ("FILE", "Also write the deployments to a CSV file."),
        "plot": ("FILE", "Also draw the answer, .png or .svg."),
    },
) | {
    "json": _switch("Answer", "json", "Print one JSON object and nothing else."),
}
