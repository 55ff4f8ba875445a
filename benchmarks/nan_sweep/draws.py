"""Random deployments: plausible ones out of the catalog, and absurd ones far beyond it.

A chunk of candidates shares one distribution of lengths, as a question does, and differs in all
else.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.nan_sweep.programs import LARGEST_POOL, Program
from fluidserve.io.catalog import find_gpu, find_model, gpu_names, model_names
from fluidserve.problem import Problem, engine_for
from fluidserve.search.grid import powers_of_two
from fluidserve.search.score import as_arrays
from fluidserve.specs.applications import application_names, find_application, synthetic_workload
from fluidserve.specs.lengths import LengthBins, length_bins
from fluidserve.specs.slo import Slo
from fluidserve.timing.instance import AggregatedSystem, Instance, System
from fluidserve.timing.kv import kv_shape, token_bytes
from fluidserve.timing.profile import load_profile

KINDS = ("plausible", "absurd")
CHUNK = 500
_GPUS = 4
_TRIES = 100


class Case(NamedTuple):
    """A chunk of candidates.

    Attributes:
      system: deployments, of one kind.
      bins: lengths that all of them serve.
      slo: promises.
      arrival_scv: squared coefficients of variation between arrivals.
      share: arrival rates over those that saturate the deployments.
      count: requests of a horizon or users of a closed loop; unused by the other programs.
    """

    system: System | AggregatedSystem
    bins: LengthBins
    slo: Slo
    arrival_scv: Any
    share: Any
    count: Any


class Pool(NamedTuple):
    """Instances of catalog models on catalog GPUs, sorted by model.

    Attributes:
      instances: all of them in one struct of arrays.
      model: number of the model of each.
      kv_bytes: bytes to hand over per token, by model.
      kv: what a prompt hands over, by model; None where every layer keeps everything.
    """

    instances: Instance
    model: np.ndarray
    kv_bytes: np.ndarray
    kv: Any


@functools.cache
def pool_of(profile_name: str, windows: bool) -> Pool:
    """All shapes that fit of every model on a few GPUs each, with windows or without."""
    profile, rng = load_profile(profile_name), np.random.default_rng(0)
    instances, owner, kv_bytes, shapes = [], [], [], []
    for name in model_names():
        model = find_model(name)
        if (kv_shape(model) is not None) != windows:
            continue
        found = []
        for gpu in map(find_gpu, rng.choice(gpu_names(), _GPUS, replace=False)):
            problem = Problem(
                model=model,
                gpu=gpu,
                workload=synthetic_workload(1, 1),
                slo=Slo(),
                engine=engine_for(profile, gpu),
            )
            degrees = powers_of_two(min(gpu.gpus_per_node, model.heads))
            found += [
                dataclasses.replace(problem.instance(tp, pp), curved=True)
                for tp in degrees
                if model.heads % tp == 0
                for pp in (1, 2, 4, 8, 16)
                if pp <= model.layers
            ]
        found = [x for x in found if x.kv_capacity > 1.0]
        if found:
            owner += [len(kv_bytes)] * len(found)
            instances += found
            kv_bytes.append(token_bytes(model))
            shapes.append(kv_shape(model))
    stacked = jax.tree.map(lambda *x: np.asarray(x, float), *instances)
    kv = jax.tree.map(lambda *x: np.asarray(x, float), *shapes) if windows else None
    return Pool(stacked, np.array(owner), np.array(kv_bytes), kv)


def draw(program: Program, kind: str, rng: np.random.Generator) -> Case:
    """A chunk of candidates as arrays."""
    pool = pool_of(program.profile, program.windows)
    plausible = kind == "plausible"
    bins, prefill = _served(pool, plausible, rng)
    build = _one_pool if program.together else _two_pools
    system = build(program, pool, float(bins.longest), prefill, plausible, rng)
    count = _whole(rng, 0.0, 4.0 if plausible else 6.0)
    scv = rng.choice([0.0, 0.3, 1.0, 1.0, 1.0, 3.0, 10.0, 100.0], CHUNK)
    if not program.e2e:
        bins = dataclasses.replace(bins, gap_nodes=None)
    case = Case(system, bins, _slo(program, plausible, rng), scv, _shares(plausible, rng), count)
    return as_arrays(case)


def _two_pools(
    program: Program,
    pool: Pool,
    longest: float,
    prefill: np.ndarray,
    plausible: bool,
    rng: np.random.Generator,
) -> System:
    """Disaggregated deployments with so many tokens in the longest request."""
    # a decode instance of the same model, often another shape on another GPU
    if plausible:
        fits = np.flatnonzero(pool.instances.kv_capacity >= longest)
        model = pool.model[fits]
        first = np.searchsorted(model, pool.model[prefill])
        last = np.searchsorted(model, pool.model[prefill], side="right")
        decode = fits[rng.integers(first, last)]
    else:
        decode = rng.integers(len(pool.model), size=CHUNK)
    of_model = pool.model[prefill]
    return System(
        prefill=_taken(pool.instances, prefill, plausible, rng),
        decode=_taken(pool.instances, decode, plausible, rng),
        n_prefill=_whole(rng, 0.0, np.log10(LARGEST_POOL + 0.5)),
        n_decode=_whole(rng, 0.0, 2.0 if plausible else 4.0),
        kv_bytes_per_token=pool.kv_bytes[of_model] if plausible else _log(rng, 2.0, 7.0),
        link_bandwidth=_link(plausible, rng),
        handover_overhead=np.where(
            rng.random(CHUNK) < 0.5,
            0.0,
            _log(rng, -4.0, -2.0) if plausible else _log(rng, -6.0, 0.0),
        ),
        max_batch=_whole(rng, 0.0, 3.1 if plausible else 5.0),
        prefill_batch=program.prefill_batch,
        prefill_tokens=_log(rng, 2.0, 4.5) if program.prefill_batch > 1 else None,
        first_token=program.first_token,
        dispatch=program.dispatch,
        prefix_hit=rng.uniform(0.0, 0.999, CHUNK) if program.windows else None,
        kv=jax.tree.map(lambda leaf: leaf[of_model], pool.kv),
    )


def _one_pool(
    program: Program,
    pool: Pool,
    longest: float,
    index: np.ndarray,
    plausible: bool,
    rng: np.random.Generator,
) -> AggregatedSystem:
    """Deployments whose instances do both phases."""
    chunked = program.together == "chunked"
    return AggregatedSystem(
        instance=_taken(pool.instances, index, plausible, rng),
        replicas=_whole(rng, 0.0, 2.0 if plausible else 4.0),
        max_batch=_whole(rng, 0.0, 3.1 if plausible else 5.0),
        prefill_tokens=_whole(rng, 2.0, 4.5),
        token_budget=_whole(rng, 1.5 if plausible else 0.0, 4.0) if chunked else None,
        dispatch=program.dispatch,
    )


def _whole(rng: np.random.Generator, low: float, high: float) -> np.ndarray:
    """Counts whose decimal logarithm is uniform."""
    return np.floor(_log(rng, low, high))


def _log(rng: np.random.Generator, low: float, high: float) -> np.ndarray:
    """Numbers whose decimal logarithm is uniform."""
    return 10.0 ** rng.uniform(low, high, CHUNK)


def _served(pool: Pool, plausible: bool, rng: np.random.Generator) -> tuple[LengthBins, np.ndarray]:
    """Lengths, and prefill instances for them, which hold the longest request where plausible."""
    if not plausible:
        return _absurd_lengths(rng), rng.integers(len(pool.model), size=CHUNK)
    for _ in range(_TRIES):
        bins = _plausible_lengths(rng)
        fits = np.flatnonzero(pool.instances.kv_capacity >= float(bins.longest))
        if len(fits):
            return bins, rng.choice(fits, CHUNK)
    raise RuntimeError("no lengths fit into any instance")


def _plausible_lengths(rng: np.random.Generator) -> LengthBins:
    """Of an application, or synthetic ones."""
    if rng.random() < 0.4:
        return _application_bins(str(rng.choice(application_names())))
    n_in, n_out = 10.0 ** rng.uniform(1.0, 5.0), 10.0 ** rng.uniform(0.0, 4.0)
    cv_in, cv_out = rng.choice([0.0, 0.5, 1.0, 2.0], 2)
    if rng.random() < 0.15:
        n_out, cv_out = 1.0, 0.0
    return length_bins(synthetic_workload(n_in, n_out, cv_in, cv_out).lengths)


@functools.cache
def _application_bins(name: str) -> LengthBins:
    return length_bins(find_application(name).lengths)


def _absurd_lengths(rng: np.random.Generator) -> LengthBins:
    n_in, n_out = 10.0 ** rng.uniform(0.0, 7.5, 2)
    cv_in, cv_out = rng.choice([0.0, 0.3, 1.0, 3.0, 10.0], 2)
    if rng.random() < 0.1:
        n_out, cv_out = 1.0, 0.0
    return length_bins(synthetic_workload(n_in, n_out, cv_in, cv_out).lengths)


def _taken(
    instances: Instance, index: np.ndarray, plausible: bool, rng: np.random.Generator
) -> Instance:
    """Instances of the pool; half of the absurd ones have times off by orders of magnitude."""
    chosen = jax.tree.map(lambda leaf: leaf[index], instances)
    if plausible:
        return chosen
    spread = np.where(rng.random(CHUNK) < 0.5, 0.0, rng.choice([0.3, 3.0], CHUNK))
    exponents = ("gemm_norm", "host_norm", "expert_miss")  # no times

    def off(path: Any, leaf: np.ndarray) -> np.ndarray:
        fixed = any(name in jax.tree_util.keystr(path) for name in exponents)
        return leaf if fixed else leaf * np.exp(spread * rng.standard_normal(CHUNK))

    times = jax.tree_util.tree_map_with_path(off, chosen.times)
    return dataclasses.replace(chosen, times=times, kv_capacity=_log(rng, 0.0, 10.0))


def _link(plausible: bool, rng: np.random.Generator) -> np.ndarray:
    """B/s; 1 to 400 Gb/s where plausible."""
    some = _log(rng, 9.0, np.log10(4e11)) / 8.0 if plausible else _log(rng, 0.0, 13.0)
    return np.where(rng.random(CHUNK) < 0.2, np.inf, some)


def _slo(program: Program, plausible: bool, rng: np.random.Generator) -> Slo:
    """Limits; one in ten is none."""

    def limit(low: float, high: float) -> np.ndarray:
        given = _log(rng, low, high) if plausible else _log(rng, -6.0, 6.0)
        return np.where(rng.random(CHUNK) < 0.1, np.inf, given)

    def own() -> float:  # quantiles are those of a question, not of a candidate
        return float(rng.choice([0.0, 0.5, 0.9, 0.99]))

    slo = Slo(
        ttft=limit(-2.0, 1.5), tpot=limit(-3.0, 0.0), attainment=rng.uniform(0.5, 0.999, CHUNK)
    )
    if not program.e2e:
        return slo
    return dataclasses.replace(
        slo, e2e=limit(-1.0, 2.5), ttft_share=own(), tpot_share=own(), e2e_share=own()
    )


def _shares(plausible: bool, rng: np.random.Generator) -> np.ndarray:
    """Rates over the saturating one: far below it, as usual, within a hair of it, far above it."""
    far = _log(rng, -3.0, 1.0) if plausible else _log(rng, -6.0, 6.0)
    closeness = _log(rng, -6.0, -1.0) if plausible else _log(rng, -8.0, -1.0)
    near = 1.0 + rng.choice([-1.0, 1.0], CHUNK) * closeness
    return np.choose(rng.integers(3, size=CHUNK), [far, near, rng.uniform(0.05, 1.0, CHUNK)])
