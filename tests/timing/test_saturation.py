"""L_m, the prompt length that saturates prefill."""

import pytest

from fluidserve.io.catalog import find_gpu, find_model
from fluidserve.timing.instance import Instance, build_instance
from fluidserve.timing.model import AbstractTimeModel, Work
from fluidserve.timing.profile import load_profile
from fluidserve.timing.saturation import saturation_length


class Linear(AbstractTimeModel):
    """A fixed time, a time per token and one per attended pair."""

    def __init__(self, fixed: float, token: float, pair: float = 0.0):
        self._fixed, self._token, self._pair = fixed, token, pair

    def stage_time(self, work: Work) -> float:
        return self._fixed + self._token * work.new + self._pair * work.attended


def length(times: AbstractTimeModel) -> int:
    return saturation_length(Instance(times=times, pp=1.0, kv_capacity=1e6))


@pytest.mark.parametrize(("profile", "tp", "expected"), [("paper", 1, 1024), ("paper", 8, 2048)])
def test_opt_13b_on_a100(profile, tp, expected):
    """1024 on one A100: row prefill-saturation of tests/lecture.csv."""
    instance = build_instance(
        find_model("OPT-13B"),
        find_gpu("A100"),
        tp=tp,
        pp=1,
        profile=load_profile(profile),
        utilization=0.9,
    )
    assert saturation_length(instance) == expected


def test_closed_form():
    """L / (a + b L) reaches 90 % of 1 / b at L = 9 a / b, up to the finite largest length."""
    assert length(Linear(100.0, 1.0)) == 1024
    assert length(Linear(113.0, 1.0)) == 1024
    assert length(Linear(115.0, 1.0)) == 2048
    assert length(Linear(0.0, 1.0)) == 1


def test_attention_is_left_out():
    assert length(Linear(100.0, 1.0, pair=1.0)) == length(Linear(100.0, 1.0))
