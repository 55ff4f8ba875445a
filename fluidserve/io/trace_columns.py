"""Columns of a trace: rows into columns, and values into tokens, seconds or block identities."""

import dataclasses
import datetime
import reprlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fluidserve.errors import InputError
from fluidserve.specs.applications import LARGEST_LENGTH

Record = tuple[int, tuple[Any, ...]]
"""Line and values of one row, in the order of the columns that are read."""

_LATEST_SECOND = 1e11
_BATCH = 50_000


@dataclasses.dataclass(frozen=True)
class Column:
    """Values of one column of consecutive rows, with what an error message needs."""

    path: Path
    name: str
    lines: Sequence[int]
    values: Sequence[Any]

    def error(self, row: int, problem: str) -> InputError:
        """The error that says where the value of a row stands and what is wrong with it."""
        shown = reprlib.repr(self.values[row])
        where = f"{self.path}, line {self.lines[row]}, column {self.name!r}"
        return InputError(f"{where}: {shown} {problem}")

    def refuse(self, wrong: np.ndarray, problem: str) -> None:
        """Raises `error` for the first row that is `wrong`, if there is one."""
        if wrong.any():
            raise self.error(int(wrong.argmax()), problem)


def batches(records: Iterator[Record]) -> Iterator[tuple[list[int], list[Any]]]:
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


def is_number(value: Any) -> bool:
    """Whether a value reads as a float; booleans do not."""
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return not isinstance(value, bool)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _numbers(column: Column, *, missing: float | None) -> np.ndarray:
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
            elif is_number(value):
                numbers[i] = float(value)
            else:
                raise column.error(i, "is not a number") from None
    column.refuse(~np.isfinite(numbers), "is not finite")
    column.refuse(numbers < 0, "is negative")
    return numbers


def tokens(column: Column) -> np.ndarray:
    """Token counts; 0 stands for missing ones, which are left out like it."""
    numbers = _numbers(column, missing=0.0)
    column.refuse(numbers >= LARGEST_LENGTH, f"is too large; below {LARGEST_LENGTH:g} tokens")
    column.refuse(numbers != np.rint(numbers), "is not a whole number of tokens")
    return numbers.astype(np.int64)


def seconds(
    column: Column,
    base: datetime.datetime | float | None,
    *,
    per_second: float,
    bare: bool,
) -> tuple[np.ndarray, datetime.datetime | float]:
    """Arrival times in s.

    Args:
      column: numbers or ISO dates.
      base: None for the first rows of a file; then what this function returned for them.
      per_second: how many units of the numbers make a second.
      bare: whether that unit was only assumed.

    Returns:
      times after `base`, and `base`: the first date of the file, or 0 when times are numbers.
    """
    if base is None:
        base = 0.0 if is_number(column.values[0]) else _date(column, 0)
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
    if bare:
        column.refuse(
            numbers > _LATEST_SECOND,
            "cannot be seconds; end the column's name in its unit: _ms, _us or _ns",
        )
    return numbers / per_second, base


def _date(column: Column, row: int) -> datetime.datetime:
    try:
        return datetime.datetime.fromisoformat(column.values[row].strip())
    except (AttributeError, ValueError):
        raise column.error(row, "is neither a number nor an ISO date") from None


def block_ids(column: Column) -> list[np.ndarray]:
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
