"""Recorded traffic: request traces from CSV or JSON-lines files, plain or gzipped.

Files are told apart by what is in them, never by their name. Each row is one request with its
prompt and output tokens and, usually, its arrival time; columns are found by the names that public
traces and benchmarks use (`TIME_NAMES`, `INPUT_NAMES`, `OUTPUT_NAMES`).

The unit of arrival times is decided in this order:

1. ISO dates carry their own (fractions beyond a microsecond are cut off; a file mixes neither dates
   and numbers nor dates with and without an offset from UTC);
2. the end of the column's name: ``_s``, ``_ms``, ``_us``, ``_ns``;
3. ``timestamp`` of a documented format: milliseconds in Mooncake's (JSON lines that also have
   ``input_length``), seconds in BurstGPT's (``Request tokens`` and ``Response tokens``);
4. otherwise seconds, and the trace says so in its notes. Such a column with values above 1e11,
   which cannot be seconds, is refused.
"""

import contextlib
import csv
import dataclasses
import datetime
import gzip
import io
import itertools
import json
import operator
import os
import re
import reprlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fluidserve.errors import InputError
from fluidserve.specs.applications import LARGEST_LENGTH
from fluidserve.specs.workload import JointLengths, Workload
from fluidserve.units import check_positive

TIME_NAMES = (
    "arrival_time",
    "arrived_at",
    "arrival_timestamp",
    "arrival",
    "timestamp",
    "request_time",
    "t",
    "time",
    "start_time",
)
"""Names of the arrival time, without a unit; the first that a file has is used."""
INPUT_NAMES = (
    "input_tokens",
    "prompt_tokens",
    "context_tokens",
    "request_tokens",
    "num_prefill_tokens",
    "num_input_tokens",
    "num_prompt_tokens",
    "input_length",
    "prompt_length",
    "input_len",
    "prompt_len",
    "prompt_size",
    "isl",
)
"""Names of the prompt length; the first that a file has is used."""
OUTPUT_NAMES = (
    "output_tokens",
    "completion_tokens",
    "generated_tokens",
    "response_tokens",
    "num_decode_tokens",
    "num_output_tokens",
    "num_completion_tokens",
    "output_length",
    "completion_length",
    "output_len",
    "completion_len",
    "token_size",
    "osl",
)
"""Names of the output length; the first that a file has is used."""

MOST_PAIRS = 1_000_000
"""Traces with more requests give this many (prompt, output) pairs to a workload."""
MOST_DROPPED = 0.5
"""Share of rows without tokens beyond which a trace is refused."""

_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_LATEST_SECOND = 1e11
_MANY_TIES = 0.1
_BATCH = 50_000


@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """Requests in order of arrival.

    Attributes:
      name: file name.
      format: what the file was recognised as.
      n_in: prompt tokens, integers above 0, shape ``(n,)``.
      n_out: output tokens, the same.
      arrival: times after the first arrival, s, same shape, not decreasing; None when the file has
        lengths only.
      hash_ids: block identities of each prompt (equal numbers are equal prefixes); None when the
        file has none.
      notes: sentences on what was decided while reading and on rows left out.
    """

    name: str
    format: str
    n_in: np.ndarray
    n_out: np.ndarray
    arrival: np.ndarray | None = None
    hash_ids: list[np.ndarray] | None = None
    notes: list[str] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.n_in)

    @property
    def duration(self) -> float:
        """Time from the first to the last arrival, s; ``nan`` without arrival times."""
        return float("nan") if self.arrival is None else float(self.arrival[-1])

    @property
    def rate(self) -> float:
        """Mean arrival rate ``(n - 1) / duration``, 1/s; ``nan`` when that is not defined.

        One less than the requests, because n arrivals have n - 1 times between them: this is the
        reciprocal of their mean.
        """
        return (len(self) - 1) / self.duration if self.duration > 0 else float("nan")

    @property
    def arrival_scv(self) -> float:
        """Squared coefficient of variation of the times between arrivals; 1 for Poisson traffic.

        ``nan`` with fewer than three requests, without arrival times, or when all are equal.
        """
        if self.arrival is None or len(self) < 3 or self.duration == 0:
            return float("nan")
        gaps = np.diff(self.arrival)
        return float(gaps.var() / gaps.mean() ** 2)

    def burstiness(self, window: float | int = 60.0) -> float:
        """Variance over mean of the number of arrivals in whole windows (index of dispersion).

        1 for Poisson traffic at any window; unlike `arrival_scv` it grows with `window` when busy
        spells last.

        Args:
          window: length of a window, s.

        Returns:
          the ratio; ``nan`` without arrival times or with fewer than two whole windows.

        Raises:
          InputError: `window` is not a positive number.
        """
        check_positive(float(window), name="window")
        if self.arrival is None or self.duration < 2 * window:
            return float("nan")
        windows = self.duration // window
        index, counts = np.unique(self.arrival // window, return_counts=True)
        counts = counts[index < windows]
        mean = counts.sum() / windows
        return float(((counts**2).sum() / windows - mean**2) / mean)


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Reads a request trace.

    Understands the CSV files of the Azure LLM traces and of BurstGPT, Mooncake's JSON lines, and
    any CSV (comma, semicolon, tab or bar) or JSON-lines file with recognisable columns. Rows with
    zero or missing prompt or output tokens are left out and counted in the notes; rows out of order
    are sorted by arrival time. The first line of JSON lines decides which keys are read.

    Args:
      path: the file; gzip is recognised by its first bytes.

    Returns:
      the trace; its notes say which columns and which unit were used and what was left out.

    Raises:
      InputError: missing, unreadable, empty, binary or damaged file; columns that are missing or
        not recognisable; a negative, infinite, NaN or non-numeric value (with line and column);
        more than half of the rows without tokens.
    """
    path = Path(path)
    try:
        with _open_text(path) as text:
            return _read(path, text)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InputError(f"{path}: the gzip data is damaged or cut short") from None
    except UnicodeDecodeError:
        raise _not_text(path) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def trace_workload(trace: Trace, name: str | None = None) -> Workload:
    """The traffic of a trace.

    Args:
      trace: what was read.
      name: name of the workload; the file name when left out.

    Returns:
      observed pairs of lengths, rate, arrivals and their variability. Without usable arrival times
      the rate is ``nan``, arrivals are empty, `arrival_scv` and `dispersion` are 1. Of more than
      `MOST_PAIRS` requests, that many pairs are taken, evenly spaced in order of arrival.
    """
    pick = slice(None)
    if len(trace) > MOST_PAIRS:
        pick = np.arange(MOST_PAIRS) * len(trace) // MOST_PAIRS
    scv, dispersion = trace.arrival_scv, trace.burstiness(60.0)
    return Workload(
        name=trace.name if name is None else name,
        lengths=JointLengths(n_in=trace.n_in[pick], n_out=trace.n_out[pick]),
        arrival_scv=1.0 if np.isnan(scv) else scv,
        dispersion=1.0 if np.isnan(dispersion) else dispersion,
        rate=trace.rate,
        arrivals=np.empty(0) if trace.arrival is None or trace.duration == 0 else trace.arrival,
    )


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Which columns hold what.

    Attributes:
      format: name of the format.
      time: column of the arrival time, or None.
      per_second: how many of its units make a second.
      unit: the unit and why, in words.
      bare: whether the unit was only assumed.
      n_in: column of the prompt tokens.
      n_out: column of the output tokens.
      hash_ids: column of the block identities, or None.
      unused: further columns that would have fitted.
    """

    format: str
    time: str | None
    per_second: float
    unit: str
    bare: bool
    n_in: str
    n_out: str
    hash_ids: str | None
    unused: list[str]

    @property
    def columns(self) -> list[str]:
        """The columns to read."""
        wanted = (self.n_in, self.n_out, self.time, self.hash_ids)
        return [column for column in wanted if column is not None]


@dataclasses.dataclass(frozen=True)
class _Column:
    """Values of one column of consecutive rows, with what an error message needs."""

    path: Path
    name: str
    lines: Sequence[int]
    values: Sequence[Any]

    def error(self, row: int, problem: str) -> InputError:
        shown = reprlib.repr(self.values[row])
        where = f"{self.path}, line {self.lines[row]}, column {self.name!r}"
        return InputError(f"{where}: {shown} {problem}")

    def refuse(self, wrong: np.ndarray, problem: str) -> None:
        if wrong.any():
            raise self.error(int(wrong.argmax()), problem)


@contextlib.contextmanager
def _open_text(path: Path) -> Iterator[io.TextIOWrapper]:
    """Opens a plain or gzipped file as UTF-8 text and refuses what is plainly binary."""
    try:
        raw = path.open("rb")
    except ValueError as error:  # a path with a null byte
        raise InputError(f"{str(path)!r}: {error}") from None
    with raw:
        zipped = raw.peek(2)[:2] == b"\x1f\x8b"
        stream = gzip.GzipFile(fileobj=raw) if zipped else raw
        if b"\0" in stream.peek(4096)[:4096]:
            raise _not_text(path)
        with io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
            yield text


def _not_text(path: Path) -> InputError:
    return InputError(f"{path}: not UTF-8 text; give a CSV or JSON-lines file, gzipped or not")


def _read(path: Path, text: Iterable[str]) -> Trace:
    text = iter(text)
    blank, first = 0, ""
    for first in text:
        if first.strip():
            break
        blank += 1
    if not first.strip():
        raise InputError(f"{path}: the file is empty")
    rows = itertools.chain([first], text)
    if first.lstrip().startswith("["):
        raise InputError(f"{path}: a JSON array or list; write one JSON object per line")
    opener = _open_json if first.lstrip().startswith("{") else _open_csv
    layout, records = opener(path, rows, blank, first)

    columns = layout.columns
    times, n_in, n_out, hash_ids, base = [], [], [], [], None
    for lines, cells in _batches(records):
        picked = {
            name: _Column(path, name, lines, cells[i :: len(columns)])
            for i, name in enumerate(columns)
        }
        n_in.append(_tokens(picked[layout.n_in]))
        n_out.append(_tokens(picked[layout.n_out]))
        if layout.time is not None:
            seconds, base = _seconds(picked[layout.time], layout, base)
            times.append(seconds)
        if layout.hash_ids is not None:
            hash_ids += _block_ids(picked[layout.hash_ids])
    if not n_in:
        raise InputError(f"{path}: a header and no rows")
    return _tidy(
        path,
        layout,
        arrival=np.concatenate(times) if times else None,
        n_in=np.concatenate(n_in),
        n_out=np.concatenate(n_out),
        hash_ids=hash_ids if layout.hash_ids is not None else None,
        dates=isinstance(base, datetime.datetime),
    )


def _tidy(
    path: Path,
    layout: _Layout,
    *,
    arrival: np.ndarray | None,
    n_in: np.ndarray,
    n_out: np.ndarray,
    hash_ids: list[np.ndarray] | None,
    dates: bool,
) -> Trace:
    """Leaves out rows without tokens, sorts by time, counts from the first arrival, takes notes."""
    notes = [f"{layout.format}: {_columns_used(layout, dates)}."]
    if layout.unused:
        notes.append(f"Not used, though it would fit: {', '.join(layout.unused)}.")

    keep = np.flatnonzero((n_in > 0) & (n_out > 0))
    if len(keep) < len(n_in):
        dropped = f"{len(n_in) - len(keep):,} of {len(n_in):,} rows"
        why = (
            f"{np.count_nonzero(n_in == 0):,} with zero or missing prompt tokens, "
            f"{np.count_nonzero(n_out == 0):,} with zero or missing output tokens"
        )
        if len(keep) < (1 - MOST_DROPPED) * len(n_in):
            raise InputError(
                f"{path}: {dropped} have no tokens ({why}); at most half may lack them"
            )
        notes.append(f"{dropped} left out: {why}.")

    if arrival is not None:
        arrival = arrival[keep]
        backward = np.count_nonzero(np.diff(arrival) < 0)
        if backward:
            order = np.argsort(arrival, kind="stable")
            arrival, keep = arrival[order], keep[order]
            notes.append(
                f"Sorted by arrival time: {backward:,} rows were earlier than the one before."
            )
        arrival -= arrival[0]
        notes += _arrival_notes(np.asarray(arrival))
    n_in, n_out = n_in[keep], n_out[keep]
    if len(keep) > MOST_PAIRS:
        notes.append(
            f"Lengths are those of {MOST_PAIRS:,} of the {len(keep):,} requests, evenly spaced; "
            "arrivals are all kept."
        )
    return Trace(
        name=path.name,
        format=layout.format,
        n_in=n_in,
        n_out=n_out,
        arrival=arrival,
        hash_ids=None if hash_ids is None else [hash_ids[i] for i in keep],
        notes=notes,
    )


def _columns_used(layout: _Layout, dates: bool) -> str:
    lengths = f"prompt tokens from {layout.n_in!r}, output tokens from {layout.n_out!r}"
    if layout.time is None:
        return f"{lengths}; no column of arrival times, so that it brings no rate"
    unit = "dates" if dates else layout.unit
    return f"arrival times from {layout.time!r} ({unit}), {lengths}"


def _arrival_notes(arrival: np.ndarray) -> list[str]:
    if arrival[-1] == 0:
        return ["All requests arrive at one time, so that the trace brings no rate."]
    gaps = np.diff(arrival)
    notes = []
    ties = np.count_nonzero(gaps == 0) / len(gaps)
    if ties > _MANY_TIES:
        step = gaps[gaps > 0].min()
        notes.append(
            f"{ties:.0%} of the requests arrive at the very time of the one before (smallest other "
            f"distance {step:.3g} s): the clock is coarse, and the variability of arrivals is in "
            "part that of its batches."
        )
    if len(gaps) < 2:
        notes.append("Too few requests for a variability of arrivals; taken as Poisson.")
    return notes


# Columns


def _plain(name: str) -> str:
    """``ContextTokens``, ``Request tokens`` and ``time (ms)`` as lower-case words joined by _."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(name))
    return re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")


def _split_unit(name: str) -> tuple[str, str | None]:
    match = re.fullmatch(r"(.+)_(s|ms|us|ns)", name)
    return (match[1], match[2]) if match else (name, None)


def _find(names: dict[str, str], wanted: Sequence[str]) -> list[str]:
    """The columns (values of `names`) whose plain names are `wanted`, best first."""
    return [column for want in wanted for column, plain in names.items() if plain == want]


def _layout(path: Path, header: list[str], *, jsonl: bool) -> _Layout:
    names = {column: _plain(column) for column in header}
    times = _find({column: _split_unit(plain)[0] for column, plain in names.items()}, TIME_NAMES)
    n_in, n_out = _find(names, INPUT_NAMES), _find(names, OUTPUT_NAMES)
    for what, found, known in (("prompt", n_in, INPUT_NAMES), ("output", n_out, OUTPUT_NAMES)):
        if not found:
            columns = reprlib.repr(list(header))[1:-1]
            raise InputError(
                f"{path}: no column of {what} tokens among {columns}; name it {known[0]} "
                f"(or {', '.join(known[1:])})"
            )
    plain = set(names.values())
    name, documented = "JSON lines" if jsonl else "CSV", None
    if jsonl and {"timestamp", "input_length"} <= plain:
        name, documented = "Mooncake JSON lines", "ms"
    elif {"timestamp", "context_tokens", "generated_tokens"} <= plain:
        name = f"Azure LLM trace {name}"
    elif {"timestamp", "request_tokens", "response_tokens"} <= plain:
        name, documented = f"BurstGPT {name}", "s"

    unit, why, bare = "s", "", False
    if times:
        suffix = _split_unit(names[times[0]])[1]
        if suffix:
            unit, why = suffix, "by its name"
        elif documented and names[times[0]] == "timestamp":
            unit, why = documented, "by the format"
        else:
            why, bare = "assumed, as its name gives no unit", True
    hashes = _find(names, ("hash_ids",)) if jsonl else []
    return _Layout(
        format=name,
        time=times[0] if times else None,
        per_second=_PER_SECOND[unit],
        unit=f"{unit}, {why}",
        bare=bare,
        n_in=n_in[0],
        n_out=n_out[0],
        hash_ids=hashes[0] if hashes else None,
        unused=[*times[1:], *n_in[1:], *n_out[1:]],
    )


# Rows

# Line and values of one row, in the order of `_Layout.columns`.
_Record = tuple[int, tuple[Any, ...]]


def _batches(records: Iterator[_Record]) -> Iterator[tuple[list[int], list[Any]]]:
    """Lines and values of some rows at a time, the values of all of them in one flat list.

    Flat, because millions of small tuples keep the garbage collector busy for seconds.
    """
    lines, cells = [], []
    for line, values in records:
        lines.append(line)
        cells.extend(values)
        if len(lines) == _BATCH:
            yield lines, cells
            lines, cells = [], []
    if lines:
        yield lines, cells


def _open_csv(
    path: Path, rows: Iterable[str], blank: int, first: str
) -> tuple[_Layout, Iterator[_Record]]:
    """The layout of a CSV file, from its header, and its records."""
    delimiter = max(",;\t|", key=first.count)
    reader = csv.reader(rows, delimiter=delimiter, skipinitialspace=True)
    readable = _readable(path, reader, blank)
    header = [column.strip() for column in next(readable)]
    known = {*INPUT_NAMES, *OUTPUT_NAMES}.intersection(map(_plain, header))
    if not known and any(map(_is_number, header)):
        raise InputError(
            f"{path}: line {blank + 1} holds numbers, not the names of the columns; put a first "
            f"line such as t_s,{INPUT_NAMES[0]},{OUTPUT_NAMES[0]}"
        )
    layout = _layout(path, header, jsonl=False)
    for column in layout.columns:
        if header.count(column) > 1:
            raise InputError(f"{path}: the column {column!r} stands twice in the header")
    pick = operator.itemgetter(*map(header.index, layout.columns))

    def records() -> Iterator[_Record]:
        for row in readable:
            if len(row) == len(header):
                yield reader.line_num + blank, pick(row)
            elif row:
                raise InputError(
                    f"{path}, line {reader.line_num + blank}: {len(row)} columns where the header "
                    f"has {len(header)}"
                )

    return layout, records()


def _readable(path: Path, reader: Any, blank: int) -> Iterator[list[str]]:
    try:
        yield from reader
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num + blank}: not CSV: {error}") from None


def _open_json(
    path: Path, rows: Iterable[str], blank: int, first: str
) -> tuple[_Layout, Iterator[_Record]]:
    """The layout of JSON lines, from the keys of the first, and their records."""
    layout = _layout(path, list(_json_object(path, first, blank + 1)), jsonl=True)
    columns = layout.columns

    def records() -> Iterator[_Record]:
        for line, row in enumerate(rows, blank + 1):
            if row.strip():
                yield line, tuple(map(_json_object(path, row, line).get, columns))

    return layout, records()


def _json_object(path: Path, row: str, line: int) -> dict[str, Any]:
    try:
        record = json.loads(row)
    except (ValueError, RecursionError):
        raise InputError(
            f"{path}, line {line}: not a complete JSON object: {reprlib.repr(row.strip())}"
        ) from None
    if not isinstance(record, dict):
        raise InputError(f"{path}, line {line}: {reprlib.repr(record)} is not a JSON object")
    return record


# Values


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return not isinstance(value, bool)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _numbers(column: _Column, *, missing: float | None) -> np.ndarray:
    """The values as floats; `missing` stands for empty ones, which are refused when it is None."""
    values = column.values
    try:
        if bool in set(map(type, values)):
            raise TypeError
        numbers = np.array(list(map(float, values)))
    except (TypeError, ValueError, OverflowError):
        numbers = np.empty(len(values))
        for i, value in enumerate(values):
            if missing is not None and _is_missing(value):
                numbers[i] = missing
            elif _is_number(value):
                numbers[i] = float(value)
            else:
                raise column.error(i, "is not a number") from None
    column.refuse(~np.isfinite(numbers), "is not finite")
    column.refuse(numbers < 0, "is negative")
    return numbers


def _tokens(column: _Column) -> np.ndarray:
    """Token counts; 0 stands for missing ones, which are left out like it."""
    numbers = _numbers(column, missing=0.0)
    column.refuse(numbers >= LARGEST_LENGTH, f"is too large; below {LARGEST_LENGTH:g} tokens")
    column.refuse(numbers != np.rint(numbers), "is not a whole number of tokens")
    return numbers.astype(np.int64)


def _seconds(
    column: _Column, layout: _Layout, base: datetime.datetime | float | None
) -> tuple[np.ndarray, datetime.datetime | float]:
    """Arrival times in s.

    Args:
      column: numbers or ISO dates.
      layout: their unit.
      base: None for the first rows of a file; then what this function returned for them.

    Returns:
      times after `base`, and `base`: the first date of the file, or 0 when times are numbers.
    """
    if base is None:
        base = 0.0 if _is_number(column.values[0]) else _date(column, 0)
    if isinstance(base, datetime.datetime):
        try:
            dates = list(map(datetime.datetime.fromisoformat, column.values))
        except (TypeError, ValueError):
            dates = [_date(column, i) for i in range(len(column.values))]
        plain = np.array([date.tzinfo is None for date in dates])
        if base.tzinfo is None:
            column.refuse(~plain, "has an offset from UTC, unlike the first date")
        else:
            column.refuse(plain, "has no offset from UTC, unlike the first date")
        return np.array([(date - base).total_seconds() for date in dates]), base
    numbers = _numbers(column, missing=None)
    if layout.bare:
        column.refuse(
            numbers > _LATEST_SECOND,
            "cannot be seconds; end the column's name in its unit: _ms, _us or _ns",
        )
    return numbers / layout.per_second, base


def _date(column: _Column, row: int) -> datetime.datetime:
    try:
        return datetime.datetime.fromisoformat(column.values[row].strip())
    except (AttributeError, ValueError):
        raise column.error(row, "is neither a number nor an ISO date") from None


def _block_ids(column: _Column) -> list[np.ndarray]:
    """Block identities of each prompt; empty where they are missing."""
    ids = []
    for i, value in enumerate(column.values):
        value = [] if value is None else value
        try:
            if not isinstance(value, list) or not set(map(type, value)) <= {int}:
                raise TypeError
            ids.append(np.array(value, np.int64))
        except (TypeError, OverflowError):
            raise column.error(i, "is not a list of whole numbers below 2**63") from None
    return ids
