"""The accelerators of the catalog against a table of published facts, and against each other."""

import csv

import pytest
from public_data import DATA, needs_data

from fluidserve.errors import InputError
from fluidserve.io.catalog import find_gpu, gpu_names, gpu_sources

LINKS_OF_ALL = {"NVLink3", "NVLink3 (reduced)", "NVLink4", "NVLink4 (reduced)", "NVLink5"}
PCIE_ONE_DIRECTION = {"Gen4 x16": 32e9, "Gen5 x16": 64e9, "Gen5 x8": 32e9}


def _rows():
    if DATA is None:
        return []
    with (DATA / "gpus" / "gpus.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _gpu(row):
    try:
        return find_gpu(row["gpu"].split(" (")[0])
    except InputError:
        return None


def test_how_many():
    assert len(gpu_names()) == 33


@needs_data
def test_every_row_of_the_table_is_in_the_catalog():
    assert {gpu.name for row in _rows() if (gpu := _gpu(row))} == set(gpu_names())


@needs_data
@pytest.mark.parametrize("row", _rows(), ids=lambda row: row["gpu"])
def test_numbers_agree_with_the_table(row):
    gpu = _gpu(row)
    assert gpu is not None
    assert gpu.memory == pytest.approx(float(row["mem_GB"]) * 1e9, rel=0.01)
    assert gpu.bandwidth == pytest.approx(float(row["mem_bw_TBs"]) * 1e12, rel=0.02)
    peak = float(row["bf16_dense_TFLOPS"]) * 1e12
    assert gpu.flop_rate_16 == pytest.approx(peak, rel=0.01)
    eight = float(row["fp8_dense_TFLOPS"]) * 1e12 if row["fp8_dense_TFLOPS"] else peak
    assert gpu.flop_rate_8 == pytest.approx(eight, rel=0.01) or gpu.name == "TPU-v6e"


@needs_data
@pytest.mark.parametrize("row", _rows(), ids=lambda row: row["gpu"])
def test_links_count_one_direction(row):
    """The table adds both directions; a bridge between two cards of a server is left out."""
    gpu = _gpu(row)
    assert gpu is not None
    both, kind = float(row["scaleup_link_GBs_bidir_per_gpu"]) * 1e9, row["scaleup_kind"]
    if kind == "none" or "bridge" in kind:
        assert gpu.scale_up_bandwidth == PCIE_ONE_DIRECTION[row["pcie"]]
        assert gpu.gpus_per_node == 8
    elif gpu.name == "Gaudi-3":
        assert gpu.scale_up_bandwidth == pytest.approx(both / 2 * 21 / 24)
    else:
        assert gpu.scale_up_bandwidth == pytest.approx(both / 2, rel=0.001)
    if kind in LINKS_OF_ALL and gpu.name != "GH200-96GB":
        assert gpu.gpus_per_node == int(row["scaleup_domain"])


@needs_data
def test_recalled_numbers_say_so():
    """What the table could not read in a file or on a page is marked in the catalog too."""
    for row in _rows():
        if row["verified"] == "no":
            gpu = _gpu(row)
            assert gpu is not None
            sources = gpu_sources(gpu.name)
            assert "recalled" in sources["flop_rate_16"] + sources["bandwidth"], gpu.name


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GB200", "GB200-NVL72"),
        ("gb300", "GB300-NVL72"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("AMD Instinct MI355X", "MI355X"),
        ("Intel Gaudi3", "Gaudi-3"),
        ("Google TPU v5e", "TPU-v5e"),
        ("trillium", "TPU-v6e"),
        ("A10G", "A10G"),
        ("NVIDIA H100 NVL", "H100-NVL"),
    ],
)
def test_names_that_drivers_and_clouds_use(written, name):
    assert find_gpu(written).name == name


def test_a_rack_is_one_scale_up_domain():
    gpu = find_gpu("GB200")
    assert gpu.gpus_per_node == 72
    assert gpu.scale_up_bandwidth == 900e9
    assert gpu.scale_out_bandwidth / gpu.gpus_per_node == 400e9 / 8
