"""The shipped tables against the traces that they were measured from."""

import runpy
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from public_data import DATA, needs_data

from fluidserve.io.trace import trace_workload
from fluidserve.io.traces import read_trace
from fluidserve.specs.applications import find_application
from fluidserve.specs.lengths import length_bins

SCRIPT = Path(__file__).parents[2] / "experiments" / "measured_applications" / "run.py"
TRACES = {
    "azure-conversation": "azure2023_conv.csv.gz",
    "azure-code": "azure2023_code.csv.gz",
    "mooncake-conversation": "mooncake_fast25_conversation.jsonl.gz",
}


@needs_data
def test_the_script_prints_what_is_shipped(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", [str(SCRIPT)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    folder = resources.files("fluidserve.specs").joinpath("catalog")
    assert capsys.readouterr().out == folder.joinpath("measured_applications.toml").read_text()


@needs_data
@pytest.mark.parametrize("name", TRACES)
def test_moments_of_the_table_are_those_of_the_trace(name):
    assert DATA is not None
    trace = read_trace(DATA / "traces" / TRACES[name])
    seen, table = length_bins(trace_workload(trace).lengths), find_application(name).lengths
    bins = length_bins(table)
    n_in, n_out = (np.asarray(x, float) for x in (table.n_in, table.n_out))
    assert n_in.mean() == pytest.approx(trace.n_in.mean(), rel=1e-3)
    assert n_out.mean() == pytest.approx(trace.n_out.mean(), rel=1e-3)
    assert (n_in**2).mean() == pytest.approx((trace.n_in.astype(float) ** 2).mean(), rel=0.01)
    # decode memory over time: prompt times steps, which torn pairs miss by 7-9 %
    held = (trace.n_in * trace.n_out).mean()
    assert (n_in * n_out).mean() == pytest.approx(held, rel=0.015)
    assert bins.longest == pytest.approx(seen.longest, rel=0.12)
