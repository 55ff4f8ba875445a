import csv
import gzip
import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidserve.errors import InputError
from fluidserve.io.prefix import prefix_reuse
from fluidserve.io.trace import Trace, trace_workload
from fluidserve.io.traces import read_trace
from fluidserve.specs.workload import JointLengths, draw_lengths

DATA = os.environ.get("FLUIDSERVE_DATA")


@pytest.fixture
def write(tmp_path):
    """Writes text or bytes to a file whose name says nothing about its format."""

    def write(content: str | bytes, name: str = "requests.dat") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def _refused(path) -> str:
    with pytest.raises(InputError) as error:
        read_trace(path)
    message = str(error.value)
    assert "\n" not in message
    assert Path(path).name in message
    return message


# Formats


def test_azure_dates(write):
    trace = read_trace(
        write(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2023-11-16 18:17:03.9799600,4808,10\n"
            "2023-11-16 18:17:04.0319600,3180,8\n"
            "2023-11-17 00:00:00.0000000,110,27\n"
        )
    )
    assert trace.format == "Azure LLM trace CSV"
    assert trace.arrival is not None
    np.testing.assert_allclose(trace.arrival, [0, 0.052, 5 * 3600 + 42 * 60 + 56.02004], atol=1e-6)
    np.testing.assert_array_equal(trace.n_in, [4808, 3180, 110])
    np.testing.assert_array_equal(trace.n_out, [10, 8, 27])
    assert trace.hash_ids is None
    assert len(trace.notes) == 1
    assert "arrival times from 'TIMESTAMP' (dates)" in trace.notes[0]


def test_dates_with_offsets(write):
    trace = read_trace(
        write(
            "timestamp,input_tokens,output_tokens\n"
            "2024-05-10 00:00:00.009930+00:00,10,1\n"
            " 2024-05-10T02:00:01.009930+02:00 ,20,2\n"
            "2024-05-10T00:00:02.009930Z,30,3\n"
        )
    )
    assert trace.arrival is not None
    np.testing.assert_allclose(trace.arrival, [0, 1, 2], atol=1e-9)


def test_seconds(write):
    trace = read_trace(write("t_s,input_tokens,output_tokens\n10.5,374,44\n14.75,396,109\n"))
    assert trace.format == "CSV"
    np.testing.assert_array_equal(trace.arrival, [0, 4.25])
    assert "'t_s' (s, by its name)" in trace.notes[0]


def test_mooncake(write):
    rows = [
        {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]},
        {"timestamp": 3000, "input_length": 7322, "output_length": 490, "hash_ids": [0, 14]},
    ]
    trace = read_trace(write("\n".join(map(json.dumps, rows)) + "\n\n"))
    assert trace.format == "Mooncake JSON lines"
    np.testing.assert_array_equal(trace.arrival, [0, 3])
    assert trace.hash_ids is not None
    np.testing.assert_array_equal(trace.hash_ids[0], [0, 1, 2])
    np.testing.assert_array_equal(trace.hash_ids[1], [0, 14])
    assert "'timestamp' (ms, by the format)" in trace.notes[0]


def test_burstgpt(write):
    trace = read_trace(
        write(
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
            "5,ChatGPT,472,18,490,Conversation log\n"
            "45,ChatGPT,1087,230,1317,Conversation log\n"
            "118,GPT-4,417,0,417,API log\n"
        )
    )
    assert trace.format == "BurstGPT CSV"
    np.testing.assert_array_equal(trace.arrival, [0, 40])
    assert "(s, by the format)" in trace.notes[0]
    assert trace.notes[1] == (
        "1 of 3 rows left out: 0 with zero or missing prompt tokens, "
        "1 with zero or missing output tokens."
    )


@pytest.mark.parametrize(
    ("time", "n_in", "n_out"),
    [
        ("arrival_time", "isl", "osl"),
        ("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
        ("arrival", "prompt_tokens", "completion_tokens"),
        ("start_time", "prompt_len", "output_len"),
        ("Arrival Time", "Prompt Tokens", "Response tokens"),
        ("arrivalTime", "inputTokens", "outputTokens"),
    ],
)
def test_synonyms_in_both_forms(write, time, n_in, n_out):
    table = read_trace(write(f"id,{n_out},{n_in},{time}\nx,7,30,1.5\ny,8,40,4\n"))
    rows = [{"id": "x", n_in: 30, time: 1.5, n_out: 7}, {n_in: 40, n_out: 8, time: 4}]
    lines = read_trace(write("\n".join(map(json.dumps, rows))))
    for trace in (table, lines):
        np.testing.assert_array_equal(trace.n_in, [30, 40])
        np.testing.assert_array_equal(trace.n_out, [7, 8])
        np.testing.assert_array_equal(trace.arrival, [0, 2.5])
        assert "s, assumed, as its name gives no unit" in trace.notes[0]


@pytest.mark.parametrize(
    ("column", "per_second"),
    [
        ("timestamp_s", 1),
        ("timestamp_ms", 1e3),
        ("arrival_time_us", 1e6),
        ("Time (ns)", 1e9),
        ("arrivalTimeMs", 1e3),
        ("timestamp", 1),
    ],
)
def test_units(write, column, per_second):
    trace = read_trace(write(f"{column},isl,osl\n{2 * per_second:.0f},1,1\n{5 * per_second},1,1\n"))
    assert trace.arrival is not None
    np.testing.assert_allclose(trace.arrival, [0, 3], rtol=1e-12)


def test_epoch_milliseconds_are_not_read_as_seconds(write):
    message = _refused(write("timestamp,isl,osl\n1700000000000,1,1\n1700000001000,1,1\n"))
    assert "line 2, column 'timestamp'" in message
    assert "cannot be seconds" in message
    trace = read_trace(write("timestamp_ms,isl,osl\n1700000000000,1,1\n1700000001000,1,1\n"))
    np.testing.assert_array_equal(trace.arrival, [0, 1])


def test_mooncake_unit_needs_its_format(write):
    rows = [{"timestamp": t, "prompt_tokens": 5, "output_tokens": 5} for t in (0, 3000)]
    trace = read_trace(write("\n".join(map(json.dumps, rows))))
    assert trace.duration == 3000
    assert "assumed" in trace.notes[0]


def test_lengths_only(write):
    trace = read_trace(write("input_tokens,output_tokens\n3772,54\n2015,156\n"))
    assert trace.arrival is None
    assert np.isnan([trace.duration, trace.rate, trace.arrival_scv, trace.burstiness()]).all()
    assert "no column of arrival times" in trace.notes[0]
    workload = trace_workload(trace)
    assert np.isnan(workload.rate)
    assert workload.arrival_scv == 1
    assert np.size(workload.arrivals) == 0


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_delimiters_and_quotes(write, delimiter):
    rows = [["t_s", "isl", "osl", "text"], ["0", "5", "6", 'a, "b"\nc'], ["1", "7", "8", ""]]
    path = write("")
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    np.testing.assert_array_equal(read_trace(path).n_in, [5, 7])


def test_byte_order_mark_blank_lines_and_crlf(write):
    trace = read_trace(write("\ufeff\r\n\r\nt_s,isl,osl\r\n0,5,6\r\n\r\n1,7,8\r\n\r\n"))
    np.testing.assert_array_equal(trace.n_out, [6, 8])
    assert "line 5" in _refused(write("\n\nt_s,isl,osl\n0,5,6\n1,x,8\n"))


def test_gzip_is_recognised_by_content(write):
    plain = "t_s,isl,osl\n0,5,6\n1,7,8\n"
    trace = read_trace(write(gzip.compress(plain.encode()), "trace.csv"))
    np.testing.assert_array_equal(trace.n_in, [5, 7])
    np.testing.assert_array_equal(read_trace(write(plain, "trace.csv.gz")).n_in, [5, 7])


def test_better_column_wins_and_the_other_is_named(write):
    trace = read_trace(write("start_time,arrived_at,isl,osl\n9,1,5,6\n9,3,7,8\n"))
    assert trace.duration == 2
    assert trace.notes[1] == "Not used, though it would fit: start_time."


# What is left out, sorted or noticed


def test_rows_without_tokens_are_counted(write):
    trace = read_trace(write("t_s,isl,osl\n0,0,5\n1,5,0\n2,,5\n3,5,\n4,5,5\n5,6,6\n6,7,7\n7,8,8\n"))
    np.testing.assert_array_equal(trace.n_in, [5, 6, 7, 8])
    np.testing.assert_array_equal(trace.arrival, [0, 1, 2, 3])
    assert trace.notes[1].startswith(
        "4 of 8 rows left out: 2 with zero or missing prompt tokens, 2"
    )


def test_missing_tokens_in_json(write):
    rows = [{"isl": 5, "osl": 6}, {"isl": 5}, {"isl": 5, "osl": None}, {"isl": 7, "osl": 8}]
    trace = read_trace(write("\n".join(map(json.dumps, rows))))
    np.testing.assert_array_equal(trace.n_in, [5, 7])
    assert "2 of 4 rows left out" in trace.notes[1]


def test_mostly_empty_trace_is_refused(write):
    message = _refused(write("t_s,isl,osl\n0,0,5\n1,5,0\n2,5,5\n"))
    assert "2 of 3 rows have no tokens" in message


def test_rows_out_of_order_are_sorted(write):
    rows = [(5000, 1, [1]), (1000, 2, [2, 2]), (3000, 3, []), (1000, 4, [4])]
    trace = read_trace(
        write(
            "\n".join(
                json.dumps({"timestamp": t, "input_length": n, "output_length": 1, "hash_ids": ids})
                for t, n, ids in rows
            )
        )
    )
    np.testing.assert_array_equal(trace.arrival, [0, 0, 2, 4])
    np.testing.assert_array_equal(trace.n_in, [2, 4, 3, 1])
    assert trace.hash_ids is not None
    assert [list(ids) for ids in trace.hash_ids] == [[2, 2], [4], [], [1]]
    assert "Sorted by arrival time: 2 rows were earlier" in trace.notes[1]


def test_coarse_clock_is_noticed(write):
    rows = "".join(f"{3 * (i // 5)},10,10\n" for i in range(50))
    trace = read_trace(write("t_s,isl,osl\n" + rows))
    assert trace.notes[1].startswith("82% of the requests arrive at the very time")
    assert "the clock is coarse, with a tick of 3 s" in trace.notes[1]
    assert trace.tick == 3


def test_batches_without_a_clock_are_kept(write):
    times = [0, 0, 0, 1.37, 1.37, 9.2, 9.2, 9.2, 10.9]
    trace = read_trace(write("t_s,isl,osl\n" + "".join(f"{t},10,10\n" for t in times)))
    assert trace.tick == 0
    assert "taken as batches" in trace.notes[1]
    np.testing.assert_array_equal(trace_workload(trace).arrivals, times)


@pytest.mark.parametrize("rows", ["4,5,6\n", "4,5,6\n4,7,8\n4,9,9\n"])
def test_one_instant_brings_no_rate(write, rows):
    trace = read_trace(write("t_s,isl,osl\n" + rows))
    assert "All requests arrive at one time" in trace.notes[1]
    workload = trace_workload(trace)
    assert np.isnan(workload.rate)
    assert workload.arrival_scv == 1
    assert np.size(workload.arrivals) == 0


def test_two_requests_have_a_rate_but_no_variability(write):
    trace = read_trace(write("t_s,isl,osl\n0,5,6\n4,7,8\n"))
    assert trace.rate == 0.25
    assert trace_workload(trace).arrival_scv == 1
    assert "taken as Poisson" in trace.notes[1]


# Refusals


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("-1", "is negative"),
        ("nan", "is not finite"),
        ("inf", "is not finite"),
        ("abc", "is not a number"),
    ],
)
@pytest.mark.parametrize("column", ["t_s", "isl", "osl"])
def test_wrong_values_in_csv(write, column, value, problem):
    row = {"t_s": "1", "isl": "5", "osl": "6"} | {column: value}
    message = _refused(write("t_s,isl,osl\n0,5,6\n" + ",".join(row.values()) + "\n2,5,6\n"))
    assert f"line 3, column {column!r}: {value!r} {problem}" in message


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (-1, "is negative"),
        (float("nan"), "is not finite"),
        ("abc", "is not a number"),
        (True, "is not a number"),
        ([1], "is not a number"),
        ({"a": 1}, "is not a number"),
        (10**400, "is not a number"),
        (1.5, "is not a whole number"),
        (1e8, "is too large"),
    ],
)
def test_wrong_values_in_json(write, value, problem):
    rows = [{"t_s": 0, "isl": 5, "osl": 6}, {"t_s": 1, "isl": 5, "osl": value}]
    message = _refused(write("\n".join(map(json.dumps, rows))))
    assert "line 2, column 'osl': " in message
    assert problem in message


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        ("2023-11-16 18:17:03", "12.5", "line 3, column 'timestamp': '12.5' is neither"),
        ("12.5", "2023-11-16 18:17:03", "line 3, column 'timestamp': '2023-11-16 18:17:03' is not"),
        ("yesterday", "0", "line 2, column 'timestamp': 'yesterday' is neither a number nor"),
        (
            "2023-11-16",
            "2023-11-16T00:00:00Z",
            "line 3, column 'timestamp': '2023-11-16T00:00:00Z'",
        ),
        ("2023-11-16T00:00:00Z", "2023-11-16", "has no offset from UTC"),
        ("2023-13-16", "0", "line 2"),
        ("", "0", "line 2"),
        ("0", "", "line 3, column 'timestamp': '' is not a number"),
    ],
)
def test_wrong_times(write, first, second, problem):
    path = write(f"timestamp,isl,osl\n{first},5,6\n{second},5,6\n")
    assert problem in _refused(path)


def test_missing_time_in_json(write):
    rows = [{"t_s": 0, "isl": 5, "osl": 6}, {"isl": 5, "osl": 6}]
    assert "line 2, column 't_s'" in _refused(write("\n".join(map(json.dumps, rows))))


@pytest.mark.parametrize(
    "ids", ["[1, 2", '"abc"', "[1.5]", "[[1], [2]]", "7", "[true]", "[9223372036854775808]"]
)
def test_wrong_block_ids(write, ids):
    row = '{"timestamp": 0, "input_length": 5, "output_length": 6, "hash_ids": '
    assert "line 2" in _refused(write(row + "[1]}\n" + row + ids + "}\n"))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is empty"),
        ("\n  \n\n", "is empty"),
        (gzip.compress(b"", mtime=0), "is empty"),
        ("t_s,isl,osl\n", "a header and no rows"),
        ("t_s,isl,osl", "a header and no rows"),
        ("0.5,374,44\n1.5,396,109\n", "put a first line such as t_s,input_tokens,output_tokens"),
        ("2023-11-16 18:17:03,374,44\n", "line 1 holds numbers, not the names"),
        ("t_s,osl\n0,5\n", "no column of prompt tokens among 't_s', 'osl'; name it input_tokens"),
        ("t_s,isl\n0,5\n", "no column of output tokens among"),
        ("isl,isl,osl\n1,2,3\n", "'isl' stands twice"),
        ("t_s,isl,osl\n0,5,6\n1,5\n", "line 3: 2 columns where the header has 3"),
        ("t_s,isl,osl\n0,5,6\n1,5,6,7\n", "line 3: 4 columns where the header has 3"),
        ('t_s,isl,osl\n0,5,"' + "6" * 200_000, "not CSV"),
        ('t_s,isl,osl,"' + "x" * 200_000, "line 1: not CSV"),
        ('[{"isl": 1, "osl": 2}]', "one JSON object per line"),
        ('{"isl": 5, "osl": 6}\n{"isl": 5, "os', "line 2: not a complete JSON object"),
        ('{"isl": 5, "osl": 6}\n[5, 6]\n', "line 2: [5, 6] is not a JSON object"),
        ('{"isl": 5, "osl": 6}\n' + '{"a":' * 100_000 + "\n", "line 2: not a complete JSON"),
        ("{isl: 5}\n", "line 1: not a complete JSON object"),
        ("{}\n", "no column of prompt tokens"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "not UTF-8 text"),
        (b"PAR1\xff\xfe\xfa", "not UTF-8 text"),
        ("t_s,isl,osl\n0,5,6\n".encode("utf-16"), "not UTF-8 text"),
        (b"t_s,isl,osl\n0,5,6\n1,\xff,3\n", "not UTF-8 text"),
        (gzip.compress(b"t_s,isl,osl\n" + b"0,5,6\n" * 99, mtime=0)[:-20], "damaged or cut short"),
        (gzip.compress(b"t_s,isl,osl\n0,5,6\n", mtime=0)[:5], "damaged or cut short"),
        (b"\x1f\x8b", "damaged or cut short"),
        (b"\x1f\x8bgarbage and more garbage", "damaged or cut short"),
    ],
)
def test_wrong_files(write, content, problem):
    assert problem in _refused(write(content))


def test_missing_file_and_directory(tmp_path):
    assert "No such file" in _refused(tmp_path / "absent.csv")
    assert "directory" in _refused(tmp_path)
    with pytest.raises(InputError, match="null byte"):
        read_trace("a\0b")


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_damage_never_ends_in_a_traceback(data):
    """Whatever bytes are overwritten, the file is read or refused with one line."""
    good = data.draw(
        st.sampled_from(
            [
                b"timestamp,isl,osl\n2023-11-16 18:17:03,5,6\n2023-11-16 18:17:04,7,8\n",
                b't_s,isl,osl\n0.5,5,6\n1.5,7,"8"\n',
                b'{"timestamp": 1, "input_length": 5, "output_length": 6, "hash_ids": [1]}\n' * 2,
                gzip.compress(b"t_s,isl,osl\n0.5,5,6\n1.5,7,8\n", mtime=0),
            ]
        )
    )
    content = bytearray(good[: data.draw(st.integers(1, len(good)))])
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[at] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "damaged"
        path.write_bytes(bytes(content))
        try:
            trace = read_trace(path)
        except InputError as error:
            trace, message = None, str(error)
        else:
            message = ""
    if trace is None:
        assert message
        assert "\n" not in message
    else:
        assert (trace.n_in > 0).all()
        assert (trace.n_out > 0).all()
        assert trace.arrival is None or np.isfinite(trace.arrival).all()


# Round trips and statistics


@settings(deadline=None, max_examples=50)
@given(
    rows=st.lists(
        st.tuples(st.floats(0, 1e9), st.integers(1, 10**7), st.integers(1, 10**7)), min_size=1
    ),
    zipped=st.booleans(),
    form=st.sampled_from(["csv", "jsonl"]),
)
def test_round_trip(rows, zipped, form):
    rows.sort(key=lambda row: row[0])
    names = ("arrival_time_s", "prompt_tokens", "completion_tokens")
    if form == "csv":
        text = ",".join(names) + "\n" + "".join(f"{t!r},{i},{o}\n" for t, i, o in rows)
    else:
        text = "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
        trace = read_trace(path)
    t, n_in, n_out = map(np.array, zip(*rows, strict=True))
    np.testing.assert_array_equal(trace.arrival, t - t[0])
    np.testing.assert_array_equal(trace.n_in, n_in)
    np.testing.assert_array_equal(trace.n_out, n_out)


def test_batches_join(write, monkeypatch):
    text = "t_s,isl,osl\n" + "".join(f"{i},{i + 1},{2 * i + 1}\n" for i in range(10))
    monkeypatch.setattr("fluidserve.io.trace_columns._BATCH", 3)
    trace = read_trace(write(text))
    np.testing.assert_array_equal(trace.n_in, np.arange(10) + 1)
    np.testing.assert_array_equal(trace.n_out, 2 * np.arange(10) + 1)
    assert "line 9, column 'osl'" in _refused(write(text.replace("7,8,15", "7,8,x")))


def _trace(arrival: np.ndarray) -> Trace:
    ones = np.ones(len(arrival), int)
    return Trace(name="made", format="CSV", n_in=ones, n_out=ones, arrival=arrival - arrival[0])


def test_poisson_statistics():
    # Gaps from exact quantiles of the exponential in random order: the rate has no sampling error.
    n = 40_000
    gaps = -np.log1p(-(np.arange(n) + 0.5) / n) / 5.0
    trace = _trace(np.cumsum(np.random.default_rng(0).permutation(gaps)))
    assert trace.rate == pytest.approx(5, rel=1e-3)
    assert trace.arrival_scv == pytest.approx(1, rel=5e-3)
    # Dispersion of about 133 windows of 60 s: its standard error is sqrt(2 / windows).
    assert abs(trace.burstiness(60) - 1) < 4 * np.sqrt(2 / 133)


def test_clockwork_and_batches():
    steady = _trace(np.arange(0.0, 1000.0))
    assert steady.rate == 1
    assert steady.arrival_scv == 0
    assert steady.burstiness(10) == 0
    # Batches of 4 every 4 s: gaps 0, 0, 0, 4 give a second moment of 4 and a mean of 1.
    batches = _trace(np.repeat(np.arange(0.0, 1000.0, 4.0), 4)[3:])
    assert batches.arrival_scv == pytest.approx(3, rel=0.01)


def test_burstiness_edges():
    assert np.isnan(_trace(np.array([0.0, 100.0])).burstiness(60))
    # Two whole windows with 3 and 1 arrivals: variance 1 over mean 2; the rest is cut off.
    spread = _trace(np.array([0.0, 1.0, 2.0, 15.0, 20.0]))
    assert spread.burstiness(10) == pytest.approx(0.5)
    with pytest.raises(InputError, match="window"):
        spread.burstiness(0)


def test_peak_of_a_burst_is_exact():
    # 20 arrivals from 100 to 109.5 s on top of one a second
    burst = np.sort(np.concatenate([np.arange(0.0, 300.0), 100.25 + 0.5 * np.arange(20)]))
    trace = _trace(burst)
    assert trace.peak_rate(10) == pytest.approx(3.0)
    assert trace.peak_rate(60) == pytest.approx((60 + 20) / 60)
    assert trace.peak_rate(1) >= trace.peak_rate(10) >= trace.peak_rate(60) >= trace.rate
    assert np.isnan(trace.peak_rate(400))
    assert _trace(np.arange(0.0, 100.0)).peak_rate(10) == 1.0


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), length=st.floats(0.5, 20.0))
def test_no_window_has_more_than_the_peak(seed, length):
    rng = np.random.default_rng(seed)
    trace = _trace(np.cumsum(rng.gamma(0.3, 3.0, 200)))
    assert trace.arrival is not None
    if trace.duration < length:
        return
    starts = rng.uniform(-length, trace.duration, 500)
    inside = [np.sum((trace.arrival >= t) & (trace.arrival < t + length)) for t in starts]
    assert trace.peak_rate(length) * length >= max(inside) - 1e-6


def test_windows_of_a_coarse_clock_are_whole_ticks():
    """Poisson traffic whose clock ticks every 3 s and jitters by 2 ms, as Mooncake's does."""
    rng = np.random.default_rng(4)
    exact = np.cumsum(rng.exponential(0.25, 8000))
    ticks = 3.0 * np.floor(exact / 3.0)
    _, which = np.unique(ticks, return_inverse=True)
    coarse = _trace(np.sort(ticks + 2e-3 * rng.random(which.max() + 1)[which]))
    assert coarse.tick == pytest.approx(3.0, rel=1e-5)
    assert coarse.window(10) == pytest.approx(9.0, rel=1e-5)
    assert coarse.window(1) == coarse.tick
    assert coarse.arrival_scv > 8
    workload = trace_workload(coarse)
    # Poisson again: the spread over a tick is that of Poisson arrivals given their number
    assert workload.arrival_scv == pytest.approx(1.0, abs=0.1)
    assert coarse.peak_rate(60) == pytest.approx(_trace(exact).peak_rate(60), rel=0.05)
    assert workload.peak_60s.rate == coarse.peak_rate(60)
    np.testing.assert_array_equal(workload.arrivals, trace_workload(coarse).arrivals)


def test_a_selection_is_a_trace_from_its_first_request(write):
    rows = "".join(f"{i},{10 * i + 5},{i + 1}\n" for i in range(6))
    part = read_trace(write("t_s,isl,osl\n" + rows))
    part = part.select(part.n_in > 20)
    np.testing.assert_array_equal(part.arrival, [0, 1, 2, 3])
    np.testing.assert_array_equal(part.n_out, [3, 4, 5, 6])


def test_workload_of_a_trace(write):
    trace = read_trace(write("t_s,isl,osl\n0,5,6\n1,7,8\n3,9,4\n"))
    workload = trace_workload(trace)
    assert workload.name == "requests.dat"
    assert trace_workload(trace, "mine").name == "mine"
    assert isinstance(workload.lengths, JointLengths)
    np.testing.assert_array_equal(workload.lengths.n_in, [5, 7, 9])
    np.testing.assert_array_equal(workload.lengths.n_out, [6, 8, 4])
    np.testing.assert_array_equal(workload.arrivals, [0, 1, 3])
    assert workload.rate == pytest.approx(2 / 3)
    assert workload.arrival_scv == pytest.approx(1 / 9)  # gaps 1 and 2
    n_in, _ = draw_lengths(workload.lengths, 300, np.random.default_rng(0))
    assert n_in.mean() == 7


def test_very_long_traces_give_evenly_spaced_pairs(write, monkeypatch):
    monkeypatch.setattr("fluidserve.io.trace.MOST_PAIRS", 4)
    trace = read_trace(write("t_s,isl,osl\n" + "".join(f"{i},{i + 1},1\n" for i in range(10))))
    assert trace.notes[-1].startswith("Lengths are those of 4 of the 10 requests, evenly spaced")
    workload = trace_workload(trace)
    assert isinstance(workload.lengths, JointLengths)
    np.testing.assert_array_equal(workload.lengths.n_in, [1, 3, 6, 8])
    assert np.size(workload.arrivals) == 10


# Public traces


def _public(name: str) -> Trace:
    if not DATA:
        pytest.skip("FLUIDSERVE_DATA does not point at the folder of public data")
    return read_trace(Path(DATA) / "data" / "traces" / name)


def test_azure_conversation():
    trace = _public("azure2023_conv.csv.gz")
    assert len(trace) == 19_366
    assert trace.n_in.mean() == pytest.approx(1154.7, abs=0.05)
    assert trace.n_out.mean() == pytest.approx(211.1, abs=0.05)
    assert (np.median(trace.n_in), np.median(trace.n_out)) == (1020, 129)
    assert trace.rate == pytest.approx(5.530, abs=1e-3)
    assert np.sqrt(trace.arrival_scv) == pytest.approx(1.094, abs=1e-3)
    assert len(trace.notes) == 1
    assert (trace.peak_rate(60), trace.peak_rate(10)) == (8.7, 11.2)


def test_azure_code():
    trace = _public("azure2023_code.csv.gz")
    assert len(trace) == 8_819
    assert trace.n_in.mean() == pytest.approx(2047.8, abs=0.05)
    assert trace.n_out.mean() == pytest.approx(27.9, abs=0.05)
    assert (np.median(trace.n_in), np.median(trace.n_out)) == (1469, 13)
    assert trace.rate == pytest.approx(2.566, abs=1e-3)
    assert np.sqrt(trace.arrival_scv) == pytest.approx(13.15, abs=0.01)
    assert (trace.peak_rate(60), trace.peak_rate(10)) == (12.05, 41.5)
    # within the busiest 10 s gaps are a little more irregular than Poisson's, in a minute far more
    workload = trace_workload(trace)
    assert workload.peak_10s.arrival_scv == pytest.approx(2.78, abs=0.01)
    assert workload.peak_60s.arrival_scv > 50


def test_mooncake_conversation():
    trace = _public("mooncake_fast25_conversation.jsonl.gz")
    assert len(trace) == 12_031
    assert trace.format == "Mooncake JSON lines"
    assert trace.duration == pytest.approx(3537, abs=0.01)
    assert trace.rate == pytest.approx(3.401, abs=1e-3)
    assert any("the clock is coarse" in note for note in trace.notes)
    assert trace.hash_ids is not None
    blocks = np.array([len(ids) for ids in trace.hash_ids])
    np.testing.assert_array_equal(blocks, -(-trace.n_in // 512))
    reuse = prefix_reuse(trace)
    assert reuse is not None
    assert reuse.blocks == pytest.approx(0.366, abs=5e-4)
    assert reuse.tokens == pytest.approx(0.374, abs=5e-4)
    assert trace.window(10) == pytest.approx(9, rel=1e-5)
    assert trace.peak_rate(60) == pytest.approx(255 / 60, rel=1e-5)


def test_public_lengths_only():
    trace = _public("arxiv_summarization_lengths.csv.gz")
    assert len(trace) == 28_257
    assert trace.arrival is None


def test_public_file_without_requests():
    with pytest.raises(InputError, match="no column of prompt tokens"):
        _public("servegen_rates_600s.csv.gz")
