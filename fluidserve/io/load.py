"""From flags and files to a `Problem`."""

import dataclasses
import math
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fluidserve.errors import InputError
from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.io.fit_inputs import FIT_ONLY, FitInputs
from fluidserve.io.gpu_spec import parse_gpu_spec
from fluidserve.io.schema import Inputs, parse_as, parse_inputs
from fluidserve.io.traffic import asked_rate, traffic_of
from fluidserve.problem import Problem, engine_for
from fluidserve.results import finite_json
from fluidserve.specs.hardware import GpuSpec
from fluidserve.specs.slo import Slo, joint_limits, limits_of
from fluidserve.timing.profile import load_profile

_LARGEST_FILE = 2**20
_EXCLUSIVE: tuple[tuple[set[str], ...], ...] = (
    ({"isl", "osl", "isl_cv", "osl_cv"}, {"app"}, {"trace"}),
    ({"gpu"}, {"gpu_spec"}),
    ({"gpus"}, {"max_gpus"}),
    ({"rate"}, {"rate_of"}, {"concurrency"}),
    ({"arrival_cv", "horizon"}, {"concurrency"}),
    ({"json"}, {"csv"}),
)
"""Groups of inputs of which one kind is given: a flag replaces what a file has of another."""


def load_inputs(flags: Mapping[str, Any], config: str | None = None) -> Inputs:
    """Inputs from flags and, where these say nothing, from a TOML file.

    Args:
      flags: by field; None where a flag was not given.
      config: path of a file whose keys are the flags' names, with ``-`` or ``_``.

    Raises:
      InputError: a file that cannot be read, or a wrong input.
    """
    values, labels = _merged(flags, config)
    return parse_inputs(without(values, FIT_ONLY), labels)


def load_fit_inputs(flags: Mapping[str, Any], config: str | None = None) -> FitInputs:
    """`load_inputs` for the question whether a model fits.

    Raises:
      InputError: a file that cannot be read, or a wrong input.
    """
    values, labels = _merged(flags, config)
    elsewhere = Inputs.model_fields.keys() - FitInputs.model_fields.keys()
    return parse_as(FitInputs, without(values, elsewhere), labels)


def without(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The values but for those of some names: one file serves every command."""
    return {name: value for name, value in values.items() if name not in names}


def _merged(flags: Mapping[str, Any], config: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Flags over the keys of a file, and how messages name what comes from the file."""
    given = {name: value for name, value in flags.items() if value is not None}
    values = read_config(config) if config is not None else {}
    values = without(values, {other for name in given for other in _alternatives(name)})
    labels = {name: f"{config}: {name.replace('_', '-')}" for name in values if name not in given}
    return values | given, labels


def _alternatives(name: str) -> set[str]:
    """The inputs that a flag stands in for, besides itself."""
    groups = [kinds for kinds in _EXCLUSIVE if any(name in kind for kind in kinds)]
    return {other for kinds in groups for kind in kinds if name not in kind for other in kind}


def read_config(path: str) -> dict[str, Any]:
    """The keys of a TOML file, with ``_`` in their names.

    Raises:
      InputError: missing, unreadable, too large, not TOML, or one key in both spellings.
    """
    try:
        file = Path(path)
        if file.stat().st_size > _LARGEST_FILE:
            raise InputError(f"--config {path}: too large for a configuration file")
        table = tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise InputError(f"--config {path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"--config {path}: is not text; give a TOML file") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"--config {path}: is not TOML ({error})") from None
    values = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name in values:
            raise InputError(f"--config {path}: {key!r} is given twice, with - and with _")
        values[name] = value
    return values


def find_gpus(names: str | None, spec: str | None) -> list[GpuSpec]:
    """The accelerators of ``--gpu``, names separated by commas, or the one of ``--gpu-spec``.

    Raises:
      InputError: a name that is not known, none, or one twice.
    """
    if spec is not None:
        return [parse_gpu_spec(spec)]
    found: dict[str, GpuSpec] = {}
    for name in (names or "").split(","):
        if not name.strip():
            raise InputError(f"--gpu: {names!r} has an empty name; separate names by one comma")
        gpu = find_gpu(name.strip())
        if gpu.name in found:
            raise InputError(f"--gpu: {names!r} names {gpu.name} twice")
        found[gpu.name] = gpu
    return list(found.values())


def build_problem(inputs: Inputs) -> tuple[Problem, list[str]]:
    """The question that inputs ask about one accelerator, and notes for the user.

    Raises:
      InputError: as `build_problems`, or several accelerators.
    """
    problems, notes = build_problems(inputs)
    if len(problems) > 1:
        raise InputError(
            f"--gpu: {inputs.gpu!r} names {len(problems)} GPUs; only a plan compares several"
        )
    return problems[0], notes


def build_problems(inputs: Inputs) -> tuple[list[Problem], list[str]]:
    """The question that inputs ask, once for each accelerator, and notes on what was decided.

    Raises:
      InputError: a name that is not known, a file that cannot be read.
    """
    gpus = find_gpus(inputs.gpu, inputs.gpu_spec)
    gpu = gpus[0]
    model = find_model(inputs.model, inputs.weight_dtype, inputs.kv_dtype)
    workload, notes = traffic_of(inputs)
    problem = Problem(
        model=model,
        gpu=gpu,
        workload=workload,
        slo=inputs.slo,
        engine=engine_for(
            load_profile(inputs.profile),
            gpu,
            first_token=inputs.first_token,
            memory_utilization=inputs.memory_utilization,
            max_batch=inputs.max_batch,
            link_bandwidth=inputs.link,
            prefill_batch=inputs.prefill_batch,
            prefill_tokens=inputs.prefill_tokens,
            dispatch=inputs.dispatch,
            kv_policy=inputs.kv_policy,
            max_model_len=inputs.max_model_len,
        ),
        horizon=inputs.horizon,
    )
    notes += [f"{problem.model.name}: {text}" for text in problem.model.notes]
    return [problem, *(_on(other, problem, inputs) for other in gpus[1:])], notes


def _on(gpu: GpuSpec, problem: Problem, inputs: Inputs) -> Problem:
    """The same question about another accelerator, whose node brings its own network."""
    link = inputs.link or float(gpu.scale_out_bandwidth)
    engine = dataclasses.replace(problem.engine, link_bandwidth=link)
    return dataclasses.replace(problem, gpu=gpu, engine=engine)


def resolved(inputs: Inputs, problem: Problem) -> dict[str, Any]:
    """The inputs as they were understood: names of the catalog, defaults filled in, SI numbers.

    Returns:
      by input; lengths are those of the traffic, wherever they come from.
    """
    workload, engine = problem.workload, problem.engine
    n_in, n_out = problem.mean_lengths
    numbers = {
        "model": problem.model.name,
        "gpu": problem.gpu.name,
        "gpu_spec": inputs.gpu_spec,
        "gpus": inputs.gpus,
        "max_gpus": inputs.max_gpus,
        "traffic": workload.name,
        "isl": n_in,
        "osl": n_out,
        "app": workload.name if inputs.app is not None else None,
        "trace": inputs.trace,
        "trace_rate": float((workload.whole or workload).rate),
        **_promise(problem.slo),
        "horizon": inputs.horizon,
        "rate": asked_rate(inputs, workload),
        "rate_of": inputs.rate_of,
        "concurrency": inputs.concurrency,
        "arrival_cv": math.sqrt(float(workload.arrival_scv)),
        "prefix_hit": float(workload.prefix_hit),
        "max_model_len": engine.max_model_len,
        "link": engine.link_bandwidth,
        "profile": engine.profile.name,
        "first_token": engine.first_token,
        "weight_dtype": problem.model.weight_dtype,
        "kv_dtype": problem.model.kv_dtype,
        "memory_utilization": engine.memory_utilization,
        "max_batch": engine.max_batch,
        "prefill_batch": engine.prefill_batch,
        "prefill_tokens": engine.prefill_tokens,
        "dispatch": engine.dispatch,
        "kind": inputs.kind,
        "token_budgets": list(inputs.token_budgets),
        "kv_policy": engine.kv_policy,
        "deployment": inputs.deployment,
    }
    return finite_json(numbers)


def _promise(slo: Slo) -> dict[str, float | None]:
    """Limits, s, and their percentiles; None for what is not asked for."""
    given = {limit.metric: limit for limit in limits_of(slo)}
    values: dict[str, float | None] = {}
    for metric in ("ttft", "tpot", "e2e", "itl"):
        limit = given.get(metric)
        values[metric] = limit.time if limit else None
        share = limit.share if limit else None
        values[f"{metric}_percentile"] = None if share is None else round(100.0 * share, 6)
    return values | {"attainment": float(slo.attainment) if joint_limits(slo) else None}
