import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluidserve.errors import InputError
from fluidserve.units import (
    LARGEST,
    UNITS,
    check_positive,
    format_bandwidth,
    format_time,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("300ms", "s", 0.3),
        ("300 ms", "s", 0.3),
        ("2.5s", "s", 2.5),
        (".5us", "s", 5e-7),
        ("15µs", "s", 15e-6),
        ("2min", "s", 120.0),
        ("1e-3h", "s", 3.6),
        ("80GB", "B", 80e9),
        ("80GiB", "B", 80 * 2**30),
        ("1.5kB", "B", 1500.0),
        ("1KB", "B", 1000.0),
        ("200Gb/s", "B/s", 25e9),
        ("200Gbps", "B/s", 25e9),
        ("200Gbit/s", "B/s", 25e9),
        ("200GB/s", "B/s", 200e9),
        ("3.35TB/s", "B/s", 3.35e12),
        ("20", "1/s", 20.0),
        ("20 rps", "1/s", 20.0),
        ("20req/s", "1/s", 20.0),
        ("60/min", "1/s", 1.0),
        ("989TFLOP/s", "FLOP/s", 989e12),
        ("1.979PFLOPS", "FLOP/s", 1.979e15),
    ],
)
def test_parse_quantity(text, unit, value):
    assert parse_quantity(text, unit, name="x") == pytest.approx(value, rel=1e-15)


def test_bits_and_bytes_differ_by_eight():
    bits = parse_quantity("200Gb/s", "B/s", name="x")
    assert parse_quantity("200GB/s", "B/s", name="x") == 8 * bits


@pytest.mark.parametrize(
    ("text", "unit", "message"),
    [
        ("300", "s", "--ttft: '300' has no unit; write for example 300ms"),
        ("300MS", "s", "case-sensitive, did you mean ms?"),
        ("200gb/s", "B/s", "did you mean GB/s or Gb/s?"),
        ("80 parsec", "s", "unknown unit 'parsec'"),
        ("fast", "s", "'fast' is not a quantity; write for example 300ms"),
        ("", "s", "is not a quantity"),
        ("1 2s", "s", "unknown unit|is not a quantity"),
        ("0s", "s", "must be greater than zero"),
        ("-1ms", "s", "must be greater than zero"),
        ("nans", "s", "must be greater than zero"),
        ("infs", "s", "out of range"),
        ("1e300s", "s", "out of range"),
        ("1e999B/s", "B/s", "out of range"),
    ],
)
def test_parse_quantity_says_what_is_wrong(text, unit, message):
    with pytest.raises(InputError, match=message.replace("?", r"\?")):
        parse_quantity(text, unit, name="--ttft")


def test_infinity_only_where_it_is_a_value():
    assert parse_quantity("inf", "B/s", name="--link", allow_inf=True) == math.inf
    with pytest.raises(InputError):
        parse_quantity("inf", "B/s", name="--link")
    with pytest.raises(InputError):
        parse_quantity("-inf", "B/s", name="--link", allow_inf=True)


@given(value=st.floats(1e-6, 1e5), unit=st.sampled_from(sorted(UNITS)), data=st.data())
def test_every_suffix_scales(value, unit, data):
    suffix = data.draw(st.sampled_from(sorted(UNITS[unit])))
    expected = value * UNITS[unit][suffix]
    if 0 < expected <= LARGEST:
        read = parse_quantity(f"{value!r}{suffix}", unit, name="x")
        assert read == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, 2 * LARGEST])
def test_check_positive_refuses(bad):
    with pytest.raises(InputError, match="rate"):
        check_positive(bad, name="rate")


def test_check_positive_returns_the_value():
    assert check_positive(LARGEST, name="rate") == LARGEST


@given(st.floats(1e-6, 1e3))
def test_format_time_reads_back(seconds):
    assert parse_quantity(format_time(seconds), "s", name="x") == pytest.approx(seconds, rel=6e-3)


@given(st.floats(1.0, 1e14))
def test_format_bandwidth_reads_back(rate):
    read = parse_quantity(format_bandwidth(rate), "B/s", name="x")
    assert read == pytest.approx(rate, rel=6e-3)


def test_format_infinity_and_zero():
    assert format_time(math.inf) == format_bandwidth(math.inf) == "∞"
    assert format_time(0.0) == "0s"
