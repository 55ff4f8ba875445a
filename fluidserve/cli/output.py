"""Where a command writes: the answer to stdout, everything else to stderr."""

import json
import os
import sys
from collections.abc import Iterable
from typing import Any

import typer
from rich.console import Console, RenderableType

from fluidserve.results import finite_json

SCHEMA_VERSION = 1
"""Of the JSON objects; it grows when a key changes its meaning or goes away."""
_BROKEN_PIPE = 141
_WIDTH_OF_FILES = 100


def print_json(values: dict[str, Any]) -> None:
    """Prints one JSON object, with its schema version first and without NaN or infinity."""
    values = {"schema_version": SCHEMA_VERSION} | finite_json(values)
    _write(json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def print_answer(parts: Iterable[RenderableType]) -> None:
    """Prints tables and sentences; colours only on a terminal that wants them."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDTH_OF_FILES
    console = Console(file=sys.stdout, width=width, highlight=False, emoji=False)
    with console.capture() as captured:
        for part in parts:
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
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader has gone; keep Python from complaining when it closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(_BROKEN_PIPE) from None
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
