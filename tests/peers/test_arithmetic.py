"""Sums that other planners got wrong: units of links, GPUs of a deployment, rates per GPU."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from fluidserve.errors import InputError
from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.problem import Problem, engine_for
from fluidserve.results import DeploymentResult
from fluidserve.search.grid import disaggregated_grid
from fluidserve.specs.applications import find_application
from fluidserve.specs.deployment import parse_label
from fluidserve.specs.slo import Slo
from fluidserve.stages.kv_link import link_state
from fluidserve.timing.profile import load_profile
from fluidserve.units import parse_quantity


def transfer(prompt, bandwidth):
    """Time to hand the KV of a prompt over, s."""
    per_token = find_model("Llama-3-70B").kv_bytes_per_token
    state = link_state(
        jnp.array(0.0),
        per_token / parse_quantity(bandwidth, "B/s", name="--link"),
        float(prompt),
        float(prompt) ** 2,
        prefill_load=jnp.array(0.0),
        n_prefill=jnp.array(1.0),
    )
    return float(state.transfer)


def test_a_link_of_bits_is_no_link_of_bytes():
    """671 MB over 400 Gb/s take 13.4 ms; a report on another tool wrote 400 GB/s."""
    assert find_model("Llama-3-70B").kv_bytes_per_token * 2048 == pytest.approx(671e6, rel=1e-3)
    assert transfer(2048, "400Gb/s") == pytest.approx(13.4e-3, rel=0.005)
    assert transfer(2048, "400GB/s") == pytest.approx(1.68e-3, rel=0.005)
    for vague in ("400", "400G", "400gb/s", "400gbps"):
        with pytest.raises(InputError):
            parse_quantity(vague, "B/s", name="--link")


@pytest.mark.parametrize(("gpu", "budget"), [("A100", 9), ("GB200", 24), ("GH200", 7)])
def test_gpus_are_those_of_all_instances(gpu, budget):
    """For every candidate; one planner counted a pool once instead of each of its workers."""
    spec = find_gpu(gpu)
    problem = Problem(
        model=find_model("OPT-13B"),
        gpu=spec,
        workload=find_application("chatbot"),
        slo=Slo(ttft=0.25, tpot=0.1, attainment=0.9),
        engine=engine_for(load_profile("default"), spec),
    )
    grid = disaggregated_grid(problem, budget)
    assert len(grid) > 20
    for i in range(len(grid)):
        deployment = grid.deployment(i)
        pools = (deployment.prefill, deployment.decode)
        total = sum(pool.replicas * pool.tp * pool.pp for pool in pools)
        assert total == deployment.gpus == grid.gpus[i] <= budget
        assert all(pool.tp <= spec.gpus_per_node for pool in pools)
    assert np.max(grid.gpus) == budget


def test_throughput_per_gpu_counts_both_pools():
    """2P1D at 10 requests/s on three GPUs is 3.33 each; a dashboard divided by one pool's."""
    empty = {field.name: None for field in dataclasses.fields(DeploymentResult)}
    pools = parse_label("2P1D tp1/tp1", gpu="H100-SXM")
    row = DeploymentResult(**empty | {"deployment": pools, "goodput": 10.0})
    assert row.gpus == 3
    assert row.goodput_per_gpu == pytest.approx(10 / 3)
    wider = dataclasses.replace(row, deployment=parse_label("2P1D tp2/tp4", gpu="H100-SXM"))
    assert wider.goodput_per_gpu == pytest.approx(10 / 8)
