import math
import tomllib
from importlib import resources

import numpy as np
import pytest

from fluidserve.errors import InputError
from fluidserve.specs.applications import (
    application_names,
    find_application,
    synthetic_workload,
)
from fluidserve.specs.tabulated import levels
from fluidserve.specs.workload import IndependentLengths, JointLengths, Workload, draw_lengths

# DistServe (OSDI 2024), figure 7, rounded; cv and cap as the lecture's exercises state them.
LECTURE = {
    "chatbot": ((755, 0.9, 2048), (200, 1.0, 1024)),
    "code-completion": ((171, 0.4, 1024), (98, 0.6, 512)),
    "summarization": ((1738, 0.3, 2048), (91, 0.6, 512)),
}


MEASURED = ("azure-conversation", "azure-code", "mooncake-conversation")


def _shape(workload: Workload):
    lengths = workload.lengths
    assert isinstance(lengths, IndependentLengths)
    return tuple((d.mean, d.cv, d.cap) for d in (lengths.n_in, lengths.n_out))


def test_catalog_holds_the_lecture():
    assert set(application_names()) == {*LECTURE, *MEASURED}
    for name, shape in LECTURE.items():
        assert _shape(find_application(name)) == shape


def test_every_number_names_its_source():
    text = resources.files("fluidserve.specs").joinpath("catalog/applications.toml").read_text()
    for entry in tomllib.loads(text).values():
        for side in ("n_in", "n_out"):
            assert set(entry[side]) == {"mean", "cv", "cap"}
            assert all(number["source"] for number in entry[side].values())


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("ShareGPT", "chatbot"),
        ("humaneval", "code-completion"),
        ("Code_Completion", "code-completion"),
        ("code completion", "code-completion"),
        (" LONGBENCH ", "summarization"),
        ("Azure Code", "azure-code"),
        ("mooncake", "mooncake-conversation"),
    ],
)
def test_spellings(spelling, name):
    assert find_application(spelling).name == name


def test_applications_are_poisson_without_a_rate():
    chat = find_application("chatbot")
    assert chat.arrival_scv == 1
    assert math.isnan(chat.rate)
    assert np.size(chat.arrivals) == 0


@pytest.mark.parametrize("name", MEASURED)
def test_measured_applications_have_rates_and_pairs(name):
    workload = find_application(name)
    lengths = workload.lengths
    assert isinstance(lengths, JointLengths)
    assert 0 < workload.rate < workload.peak_60s.rate < workload.peak_10s.rate
    assert workload.arrival_scv >= 1
    assert workload.dispersion > 2
    assert np.min(lengths.n_in) >= 1
    assert np.min(lengths.n_out) >= 1
    assert np.size(workload.arrivals) == 0
    assert math.isnan(workload.prefix_bound) == (name != "mooncake-conversation")


def test_every_measured_table_names_trace_and_licence():
    folder = resources.files("fluidserve.specs").joinpath("catalog")
    text = folder.joinpath("measured_applications.toml").read_text()
    for entry in tomllib.loads(text).values():
        assert "requests" in entry["source"]
        assert entry["licence"]
        shares = np.array(entry["joint"]).sum(1) / np.sum(entry["joint"])
        np.testing.assert_allclose(shares, np.diff(levels(8)), atol=1e-3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "chatbt",
            "unknown application 'chatbt', did you mean 'chatbot'? Known: chatbot (sharegpt)",
        ),
        ("xyzzy", "unknown application 'xyzzy'. Known: chatbot (sharegpt), code-completion"),
        ("", "unknown application ''. Known:"),
    ],
)
def test_unknown_application(name, message):
    with pytest.raises(InputError) as error:
        find_application(name)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_synthetic_fixed_lengths():
    workload = synthetic_workload(512, 64)
    n_in, n_out = draw_lengths(workload.lengths, 10, np.random.default_rng(0))
    assert set(n_in) == {512}
    assert set(n_out) == {64}
    assert workload.name == "512/64"
    assert workload.arrival_scv == 1


def test_synthetic_spread():
    workload = synthetic_workload(4000, 500, 0.5, 0.3, arrival_cv=2)
    n_in, n_out = draw_lengths(workload.lengths, 100_000, np.random.default_rng(0))
    assert workload.arrival_scv == 4
    # Stratified: no sampling error, only the last slices of the tail and rounding are missing.
    assert n_in.mean() == pytest.approx(4000, rel=1e-3)
    assert n_in.std() / n_in.mean() == pytest.approx(0.5, rel=5e-3)
    assert n_out.std() / n_out.mean() == pytest.approx(0.3, rel=5e-3)


@pytest.mark.parametrize("tokens", [0, -5, 0.5, 1e8, math.nan, math.inf])
@pytest.mark.parametrize("field", ["isl", "osl"])
def test_synthetic_refuses_lengths(field, tokens):
    with pytest.raises(InputError, match=f"^{field}="):
        synthetic_workload(**({"isl": 100, "osl": 100} | {field: tokens}))


@pytest.mark.parametrize("cv", [-0.1, 10.1, math.nan, math.inf])
@pytest.mark.parametrize("field", ["isl_cv", "osl_cv", "arrival_cv"])
def test_synthetic_refuses_cv(field, cv):
    with pytest.raises(InputError, match=f"^{field}="):
        synthetic_workload(100, 100, **{field: cv})
