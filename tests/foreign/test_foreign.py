"""A handful of rows of experiments/foreign: other simulators' numbers, and measured ones."""

import sys
from pathlib import Path

import numpy as np
import pytest
from public_data import needs_data

from fluidserve.timing.model import decode_time, prefill_time

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "foreign"


@pytest.fixture(scope="module")
def foreign():
    """The modules of the experiment."""
    sys.path.insert(0, str(FOLDER))
    try:
        import distserve
        import dynamo
    finally:
        sys.path.remove(str(FOLDER))
    return dynamo, distserve


def test_the_mockers_times_without_load(foreign):
    """38.28 ms to the first token of 1024: 32.49 of prefill and the first decode step."""
    dynamo, _ = foreign
    row = {"P": "1", "D": "1", "isl": "1024", "max_num_batched_tokens": "1024", "kv_gbps": ""}
    times = dynamo.system_of(row).prefill.times
    first = prefill_time(times, 1024.0) + decode_time(times, 1.0, 1033.0)
    assert first == pytest.approx(38.28e-3, rel=1e-3)


def test_the_jump_of_distserves_decode_time_is_kept(foreign):
    """OPT-66B tp2, 500 tokens each: 104.6 ms for 94 requests, 79.4 ms for 95, and the overhead."""
    _, distserve = foreign
    times = distserve.Setup("OPT-66B", "sharegpt", (2, 1, 2, 1)).system().decode.times
    for batch, wanted in ((94.0, 104.6e-3), (95.0, 79.4e-3)):
        overhead = 2e-3 + 1e-7 * 500 * batch
        assert decode_time(times, batch, 500 * batch) - overhead == pytest.approx(wanted, rel=1e-3)


@needs_data
def test_dynamos_replay_at_moderate_load(foreign, monkeypatch):
    """One prompt per pass at 20/s: mean and P90 of TTFT and TPOT of five seeds within 6 %."""
    dynamo, _ = foreign
    monkeypatch.setattr("common.DATA", _data())
    key = "1/2/20/1024/128/1024/3000/"
    theirs = dynamo.groups()[key]
    found = dynamo.simulated(theirs[0])
    names = ("mean_ttft", "p90_ttft", "mean_tpot", "p90_tpot")
    for i, name in enumerate(names):
        mean = np.mean([float(r[name]) for r in theirs])
        assert found[i] == pytest.approx(mean, rel=0.06), name


@needs_data
@pytest.mark.parametrize("rate", [3.0, 6.0, 7.5])
def test_measured_attainment_of_opt_13b(foreign, monkeypatch, rate):
    """Within 10 points of A100s by the simulator, with DistServe's step times."""
    _, distserve = foreign
    monkeypatch.setattr("common.DATA", _data())
    measured = {3.0: 1.0, 6.0: 0.94, 7.5: 0.85}
    setup = distserve.Setup("OPT-13B", "sharegpt", (2, 1, 1, 1))
    _, _, both = distserve.by_simulation(setup, 300, rate, 4)
    assert abs(both - measured[rate]) < 0.1


def _data() -> Path:
    from public_data import DATA

    assert DATA is not None
    return DATA
