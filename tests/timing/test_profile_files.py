"""Profiles: the shipped ones are complete, and a wrong file says where."""

import re

import pytest

from fluidserve.errors import InputError
from fluidserve.io.catalog import gpu_names
from fluidserve.timing.profile import (
    LayerConstants,
    PaperConstants,
    load_profile,
    shipped_profiles,
)

PAPER = """
name = "mine"
description = "a test"
form = "paper"
first_token = "prefill"
memory_utilization = 0.9
memory_of = "usable"
handover_overhead = 0.0

[constants."*"]
compute_efficiency = 0.7
token_offset = 96
memory_efficiency = 0.8
tp_speedup = 1.74
overhead = 1e-3
"""


def read(tmp_path, text):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    return load_profile(str(file))


def test_shipped_profiles():
    assert {"paper", "default", "vllm-0.2"} <= set(shipped_profiles())
    kinds = {"paper": PaperConstants, "layers": LayerConstants}
    for name in shipped_profiles():
        profile = load_profile(name)
        assert profile.name == name
        for constants in profile.constants.values():
            assert isinstance(constants, kinds[profile.form])
    assert load_profile("DEFAULT").name == "default"


@pytest.mark.parametrize("name", ["paper", "default"])
@pytest.mark.parametrize("gpu", gpu_names())
def test_every_accelerator_has_constants_with_provenance(name, gpu):
    provenance = load_profile(name).provenance(gpu)
    assert re.match(r"(fitted|assumed): \S", provenance)


def test_a_users_file(tmp_path):
    profile = read(tmp_path, PAPER)
    assert profile.name == "mine"
    constants = profile.constants_for("anything")
    assert constants.token_offset == 96.0
    assert isinstance(constants.token_offset, float)


def test_own_constants_go_before_the_others(tmp_path):
    text = PAPER.replace('[constants."*"]', '[constants.shared]\noverhead = 5e-3\n[constants."*"]')
    text += '\n[constants."H100-SXM"]\ncompute_efficiency = 0.5\ntoken_offset = 0\n'
    text += "memory_efficiency = 0.8\ntp_speedup = 1.9\n"
    profile = read(tmp_path, text)
    assert profile.constants_for("h100-sxm").compute_efficiency == 0.5
    assert profile.constants_for("H100-SXM").overhead == 5e-3
    assert profile.constants_for("L4").compute_efficiency == 0.7


def test_no_constants_for_an_accelerator(tmp_path):
    profile = read(tmp_path, PAPER.replace('"*"', '"H100-SXM"'))
    with pytest.raises(InputError, match="no constants for L4; it has h100-sxm"):
        profile.constants_for("L4")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("overhead = 1e-3", "overhead = 1e-3\nspeed = 1", "unknown key 'speed'; known: compute"),
        ('name = "mine"', 'name = "mine"\ncolour = "red"', "unknown key 'colour'"),
        ("overhead = 1e-3", "", r"constants\.\*: 'overhead' is missing"),
        ("memory_utilization = 0.9", "", "'memory_utilization' is missing"),
        ("overhead = 1e-3", "overhead = -1e-3", "overhead = -0.001 must be a non-negative number"),
        ("overhead = 1e-3", "overhead = nan", "overhead = nan must be a non-negative number"),
        ("overhead = 1e-3", "overhead = inf", "overhead = inf must be a non-negative number"),
        ("overhead = 1e-3", 'overhead = "1ms"', "overhead = '1ms' must be a non-negative number"),
        ('form = "paper"', 'form = "magic"', "form is 'magic'; it must be one of paper, layers"),
        ('form = "paper"', "", "form is None"),
        ('name = "mine"', "name = ", "not a TOML file"),
    ],
)
def test_a_wrong_file_says_where(tmp_path, old, new, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, PAPER.replace(old, new))


def test_no_such_profile():
    with pytest.raises(InputError, match="'quick' is neither a file nor one of default"):
        load_profile("quick")


def test_a_file_that_is_no_text(tmp_path):
    file = tmp_path / "binary.toml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a TOML file"):
        load_profile(str(file))
