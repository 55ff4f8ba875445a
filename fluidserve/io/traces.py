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
from fluidserve.io.trace import Trace, tidy_trace
from fluidserve.io.trace_columns import (
    Column,
    Record,
    batches,
    block_ids,
    is_number,
    seconds,
    tokens,
)

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

_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


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
    for lines, cells in batches(records):
        picked = {
            name: Column(path, name, lines, cells[i :: len(columns)])
            for i, name in enumerate(columns)
        }
        n_in.append(tokens(picked[layout.n_in]))
        n_out.append(tokens(picked[layout.n_out]))
        if layout.time is not None:
            arrival, base = seconds(
                picked[layout.time], base, per_second=layout.per_second, bare=layout.bare
            )
            times.append(arrival)
        if layout.hash_ids is not None:
            hash_ids += block_ids(picked[layout.hash_ids])
    if not n_in:
        raise InputError(f"{path}: a header and no rows")
    return tidy_trace(
        path,
        format=layout.format,
        arrival=np.concatenate(times) if times else None,
        n_in=np.concatenate(n_in),
        n_out=np.concatenate(n_out),
        hash_ids=hash_ids if layout.hash_ids is not None else None,
        notes=_layout_notes(layout, isinstance(base, datetime.datetime)),
    )


def _layout_notes(layout: _Layout, dates: bool) -> list[str]:
    notes = [f"{layout.format}: {_columns_used(layout, dates)}."]
    if layout.unused:
        notes.append(f"Not used, though it would fit: {', '.join(layout.unused)}.")
    return notes


def _columns_used(layout: _Layout, dates: bool) -> str:
    lengths = f"prompt tokens from {layout.n_in!r}, output tokens from {layout.n_out!r}"
    if layout.time is None:
        return f"{lengths}; no column of arrival times, so that it brings no rate"
    unit = "dates" if dates else layout.unit
    return f"arrival times from {layout.time!r} ({unit}), {lengths}"


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


def _open_csv(
    path: Path, rows: Iterable[str], blank: int, first: str
) -> tuple[_Layout, Iterator[Record]]:
    """The layout of a CSV file, from its header, and its records."""
    delimiter = max(",;\t|", key=first.count)
    reader = csv.reader(rows, delimiter=delimiter, skipinitialspace=True)
    readable = _readable(path, reader, blank)
    header = [column.strip() for column in next(readable)]
    known = {*INPUT_NAMES, *OUTPUT_NAMES}.intersection(map(_plain, header))
    if not known and any(map(is_number, header)):
        raise InputError(
            f"{path}: line {blank + 1} holds numbers, not the names of the columns; put a first "
            f"line such as t_s,{INPUT_NAMES[0]},{OUTPUT_NAMES[0]}"
        )
    layout = _layout(path, header, jsonl=False)
    for column in layout.columns:
        if header.count(column) > 1:
            raise InputError(f"{path}: the column {column!r} stands twice in the header")
    pick = operator.itemgetter(*map(header.index, layout.columns))

    def records() -> Iterator[Record]:
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
) -> tuple[_Layout, Iterator[Record]]:
    """The layout of JSON lines, from the keys of the first, and their records."""
    layout = _layout(path, list(_json_object(path, first, blank + 1)), jsonl=True)
    columns = layout.columns

    def records() -> Iterator[Record]:
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
