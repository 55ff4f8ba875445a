"""Where a command writes: the answer to stdout, everything else to stderr."""

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import typer
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table

from fluidserve.report.layout import keep_whole
from fluidserve.results import finite_json

SCHEMA_VERSION = 1
"""Of the JSON objects; it grows when a key changes its meaning or goes away."""
_BROKEN_PIPE = 141
_CANNOT_WRITE = 74
_WIDTH_OF_FILES = 100
_UNLIMITED = 10_000


def print_json(values: dict[str, Any]) -> None:
    """Prints one JSON object, with its schema version first and without NaN or infinity."""
    values = {"schema_version": SCHEMA_VERSION} | finite_json(values)
    _write(json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def print_answer(parts: Iterable[RenderableType]) -> None:
    """Prints tables and sentences; colours only on a terminal that wants them."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDTH_OF_FILES
    console = Console(file=sys.stdout, width=width, highlight=False, emoji=False)
    usual = console.width
    with _writing(), console.capture() as captured:
        for part in parts:
            console.width = usual
            if isinstance(part, Table):  # better broken by a narrow terminal than cut here
                keep_whole(part)
                unlimited = console.options.update(max_width=_UNLIMITED)
                console.width = max(usual, Measurement.get(console, unlimited, part).minimum)
            console.print(part, markup=False, soft_wrap=False)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    _write("\n".join(lines) + "\n")


def note(text: str) -> None:
    """Tells something that is not the answer."""
    print(text, file=sys.stderr, flush=True)


def progress(text: str) -> None:
    """Tells what takes a while, to a person who is waiting."""
    if sys.stderr.isatty():
        note(text)


def _write(text: str) -> None:
    with _writing():
        try:
            sys.stdout.write(text)
        except UnicodeEncodeError:
            encoding = sys.stdout.encoding
            sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """Leaves with an exit code of its own where stdout takes no more."""
    try:
        yield
    except OSError as error:
        # keep Python from complaining when it closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise typer.Exit(_BROKEN_PIPE) from None
        note(f"error: the answer cannot be written ({error.strerror})")
        raise typer.Exit(_CANNOT_WRITE) from None
