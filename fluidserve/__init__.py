"""Plan LLM serving on GPUs: batched queueing and roofline models, cross-checked by simulation.

Public names are loaded when they are first used, so that ``import fluidserve`` itself is instant.
"""

import importlib
from typing import Any

_MODULE_OF = {
    "Disaggregated": "specs.deployment",
    "Engine": "problem",
    "InputError": "errors",
    "NoFeasibleDeployment": "errors",
    "Pool": "specs.deployment",
    "Problem": "problem",
    "Slo": "specs.slo",
    "Workload": "specs.workload",
    "analyse": "search.plan",
    "busiest": "specs.workload",
    "compare": "search.compare",
    "crosscheck": "verify.crosscheck",
    "engine_for": "problem",
    "find_application": "specs.applications",
    "find_gpu": "io.catalog",
    "find_model": "io.catalog",
    "load_profile": "timing.profile",
    "parse_gpu_spec": "io.gpu_spec",
    "parse_label": "specs.deployment",
    "plan": "search.plan",
    "read_model": "io.hf_config",
    "read_trace": "io.traces",
    "replay": "verify.crosscheck",
    "saturation_length": "timing.saturation",
    "simulate": "eventsim",
    "summarise": "eventsim",
    "synthetic_workload": "specs.applications",
    "trace_workload": "io.trace",
}

__all__ = sorted(_MODULE_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
