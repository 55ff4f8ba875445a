"""The questions that speed is measured on."""

import dataclasses
import functools

import numpy as np

from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.problem import Problem, engine_for
from fluidserve.search.grid import Grid, disaggregated_grid
from fluidserve.specs.applications import find_application
from fluidserve.specs.slo import Slo
from fluidserve.timing.profile import load_profile

PROFILES = {
    "paper": "paper profile, first token from prefill",
    "default": "default profile, first token from decode",
}


@functools.cache
def problem_for(profile: str) -> Problem:
    """Llama-3.1-70B chat on H100."""
    gpu = find_gpu("H100")
    return Problem(
        model=find_model("Llama-3.1-70B"),
        gpu=gpu,
        workload=find_application("chatbot"),
        slo=Slo(ttft=0.5, tpot=0.05, attainment=0.9),
        engine=engine_for(load_profile(profile), gpu),
    )


@functools.cache
def grid_for(profile: str, budget: int) -> Grid:
    """All deployments of a budget."""
    return disaggregated_grid(problem_for(profile), budget)


def rows_of(grid: Grid, rows: np.ndarray) -> Grid:
    """Some candidates of a grid."""
    fields = ("prefill", "decode", "n_prefill", "n_decode")
    return dataclasses.replace(grid, **{name: getattr(grid, name)[rows] for name in fields})


def single_stages(grid: Grid) -> Grid:
    """The candidates of a grid without pipelines in either pool."""
    single = np.array([s.pp == 1 for s in grid.shapes])
    return rows_of(grid, np.flatnonzero(single[grid.prefill] & single[grid.decode]))
