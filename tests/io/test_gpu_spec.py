"""An accelerator out of four numbers."""

import pytest

from fluidserve.errors import InputError
from fluidserve.io.catalog import find_gpu
from fluidserve.io.gpu_spec import GPUS_PER_NODE, NAME, NETWORK, parse_gpu_spec
from fluidserve.io.load import find_gpus

FOUR = "peak=989T, bandwidth=3.35TB/s, memory=80GB, link=450GB/s"


def test_four_numbers_are_enough():
    gpu = parse_gpu_spec(FOUR)
    assert (gpu.name, gpu.gpus_per_node, gpu.scale_out_bandwidth) == (NAME, GPUS_PER_NODE, NETWORK)
    assert gpu.flop_rate_16 == gpu.flop_rate_8 == 989e12
    assert gpu.bandwidth == 3.35e12
    assert gpu.memory == gpu.usable_memory == 80e9
    assert gpu.scale_up_bandwidth == 450e9


def test_all_keys_in_any_order_and_spelling():
    gpu = parse_gpu_spec(
        "NAME=My GPU,gpus-per-node=4, network=200Gb/s,usable=81559MiB ,peak8=1979TFLOP/s,"
        "link=3600Gb/s,memory=80GB,bandwidth=3350GB/s,peak=0.989PFLOPS"
    )
    same = find_gpu("H100")
    assert (gpu.name, gpu.gpus_per_node, gpu.scale_out_bandwidth) == ("My GPU", 4, 25e9)
    for field in (
        *("memory", "usable_memory", "bandwidth", "flop_rate_16", "flop_rate_8"),
        "scale_up_bandwidth",
    ):
        assert getattr(gpu, field) == pytest.approx(getattr(same, field)), field


def with_(**changed):
    numbers = {"peak": "989T", "bandwidth": "3.35TB/s", "memory": "80GB", "link": "450GB/s"}
    pairs = numbers | changed
    return ",".join(f"{key}={value}" for key, value in pairs.items() if value is not None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' is not of the form key=value"),
        ("H100", "'H100' is not of the form key=value; write for example 'peak=989T,"),
        (FOUR + ",", "'' is not of the form key=value"),
        (with_(peak=None), "'peak' is missing"),
        (with_(bandwidth=None), "'bandwidth' is missing"),
        (with_(memory=None), "'memory' is missing"),
        (with_(link=None), "'link' is missing"),
        (with_(link=""), "'link=' is not of the form key=value"),
        (with_(colour="green"), "unknown key 'colour'; known: peak, bandwidth, memory, link"),
        (FOUR + ", peak=1P", "'peak' is given twice"),
        (with_(peak="989"), "peak: '989' has no unit; write for example 989TFLOP/s"),
        (with_(peak="989TB/s"), "peak: unknown unit 'TB/s'"),
        (with_(peak="989t"), "did you mean T?"),
        (with_(bandwidth="3.35"), "bandwidth: '3.35' has no unit"),
        (with_(bandwidth="3.35T"), "bandwidth: unknown unit 'T'"),
        (with_(memory="80"), "memory: '80' has no unit"),
        (with_(memory="80Gb"), "memory: unknown unit 'Gb' in '80Gb'; units are case-sensitive"),
        (with_(memory="80GB/s"), "memory: unknown unit 'GB/s'"),
        (with_(link="450"), "link: '450' has no unit"),
        (with_(link="450gb/s"), "did you mean GB/s or Gb/s?"),
        (with_(link="0GB/s"), "link: 0GB/s must be greater than zero"),
        (with_(link="-1GB/s"), "link: -1GB/s must be greater than zero"),
        (with_(link="inf"), "link: 'inf' has no unit"),
        (with_(memory="nanGB"), "memory: nanGB must be greater than zero"),
        (with_(peak="infT"), "peak: infT is out of range"),
        (with_(peak="1e30T"), "peak: 1e30T is out of range"),
        (with_(memory="many GB"), "memory: 'many GB' is not a quantity"),
        (with_(peak8="500T"), "peak8 = 500T is below peak = 989T"),
        (with_(usable="90GB"), "usable = 90GB is more than the memory, 80GB"),
        (with_(gpus_per_node="0"), "gpus_per_node = '0' must be a whole number"),
        (with_(gpus_per_node="2.5"), "gpus_per_node = '2.5' must be a whole number"),
        (with_(gpus_per_node="-8"), "gpus_per_node = '-8' must be a whole number"),
        (with_(gpus_per_node="nan"), "gpus_per_node = 'nan' must be a whole number"),
        (with_(gpus_per_node="1000000"), "from 1 to 100,000"),
        (with_(name="--"), "name = '--' has no letters"),
        (with_(name="h100"), "'h100' is a GPU of the catalog; use --gpu H100-SXM, or another name"),
    ],
)
def test_what_is_wrong_is_said(text, says):
    with pytest.raises(InputError) as caught:
        parse_gpu_spec(text)
    assert str(caught.value).startswith("--gpu-spec: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_several_names():
    names = [gpu.name for gpu in find_gpus(" h100,H200-SXM , mi300x", None)]
    assert names == ["H100-SXM", "H200-SXM", "MI300X"]
    for wrong, says in (
        ("h100,", "has an empty name"),
        ("", "has an empty name"),
        ("h100,H100-SXM", "names H100-SXM twice"),
        ("h100,h1000", "gpu 'h1000' is neither"),
    ):
        with pytest.raises(InputError, match=says):
            find_gpus(wrong, None)
