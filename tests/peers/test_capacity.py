"""Room for KV, against capacities that were measured and cases that other planners got wrong."""

import csv

import numpy as np
import pytest
from public_data import DATA, needs_data

from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.problem import Problem, engine_for
from fluidserve.search.fit import Question, fits, smallest
from fluidserve.search.grid import fitting_shapes, misfit
from fluidserve.specs.applications import synthetic_workload
from fluidserve.specs.slo import Slo
from fluidserve.timing.instance import kv_capacity
from fluidserve.timing.profile import load_profile

USABLE = 0.92
"""79.0e9 of the 85.9e9 bytes that the driver of an A100-80GB reports."""


def tokens(model, tp, pp, *, gpu="A100", share=USABLE):
    return kv_capacity(
        find_model(model),
        find_gpu(gpu),
        tp=tp,
        pp=pp,
        profile=load_profile("default"),
        utilization=share,
    )


@needs_data
def test_measured_capacities():
    """76 capacities that DistServe measured for OPT-13B, 66B and 175B on A100-SXM4-80GB.

    The model is off by 0.5% on average and 2.9% at most.
    """
    assert DATA is not None
    with (DATA / "simulators" / "distserve_kv_capacity.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    measured = np.array([float(row["max_num_tokens"]) for row in rows])
    ours = np.array([tokens(r["model"], int(r["tp"]), int(r["pp"])) for r in rows])
    error = np.abs(ours / measured - 1.0)
    assert len(rows) == 76
    assert error.max() < 0.03
    assert error.mean() < 0.006


def test_memory_adds_up_over_stages_as_over_tensor_parallel_gpus():
    """A simulator was off for pipelines: OPT-66B holds 78,500 tokens on four GPUs either way."""
    assert tokens("OPT-66B", 2, 2) == tokens("OPT-66B", 4, 1) == pytest.approx(78_500, rel=0.03)
    assert tokens("OPT-66B", 2, 1) == pytest.approx(11_600, rel=0.03)
    assert tokens("OPT-66B", 1, 1) < 0


def held(context, *, model="Llama-3-70B", gpu="A100", tp=8):
    asked = Question(
        model=find_model(model),
        gpu=find_gpu(gpu),
        profile=load_profile("default"),
        utilization=USABLE,
        context=context,
    )
    (fit,) = [fit for fit in fits(asked, 8) if (fit.tp, fit.pp) == (tp, 1)]
    return fit


def test_requests_that_fit_fall_with_one_over_their_length():
    """One tool sized KV with a length of 1. 320 KiB a token here, spread over eight GPUs."""
    free = 8 * USABLE * 80 * 2**30 - find_model("Llama-3-70B").weight_bytes
    for context in (512, 2048, 8192):
        assert held(context).concurrency == pytest.approx(free / (320 * 2**10 * context))
    assert held(2048).users == pytest.approx(732, abs=2)


def problem(model, gpu, *, n_in=1024, n_out=256):
    gpu = find_gpu(gpu)
    return Problem(
        model=find_model(model),
        gpu=gpu,
        workload=synthetic_workload(n_in, n_out, 0.0, 0.0),
        slo=Slo(ttft=10.0, tpot=1.0, attainment=0.9),
        engine=engine_for(load_profile("default"), gpu),
    )


def test_70b_on_one_gpu_of_80_gb_is_refused():
    asked = problem("Llama-3.1-70B", "H100")
    one = asked.instance(1, 1)
    assert misfit(asked, one, tp=1, pp=1) == "the weights do not fit into the memory"
    shapes, rejected = fitting_shapes(asked, 5)
    assert rejected["the weights do not fit into the memory"] == 1
    assert all(shape.gpus >= 2 for shape in shapes)
    best = smallest(fits(_question(asked), 8), 1)
    assert best is not None
    assert best.gpus == 2


def _question(asked):
    return Question(
        model=asked.model,
        gpu=asked.gpu,
        profile=asked.engine.profile,
        utilization=asked.engine.memory_utilization,
        context=1280,
    )


def test_a_shape_that_cannot_hold_one_request_is_refused():
    asked = problem("Llama-3.1-70B", "H100", n_in=60_000, n_out=256)
    two = asked.instance(2, 1)
    assert 0 < two.kv_capacity < 60_256
    assert "the KV of the longest request" in misfit(asked, two, tp=2, pp=1)
    assert misfit(asked, asked.instance(4, 1), tp=4, pp=1) == ""


def test_weights_that_an_engine_printed():
    """vLLM's start-up log of an 8-bit Llama-3.1-70B: loading the weights took 67.7229 GiB."""
    weights = find_model("Llama-3.1-70B", "int8").weight_bytes
    assert weights / 2**30 == pytest.approx(67.7229, rel=0.002)
