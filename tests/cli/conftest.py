"""Runs command lines in this process, so that JAX compiles once for all of them."""

import dataclasses
import json
from collections.abc import Callable

import jax
import pytest

from fluidserve.cli import main

SMALL = {
    "model": "opt-13b",
    "gpu": "a100",
    "gpus": "3",
    "app": "chatbot",
    "ttft": "250ms",
    "tpot": "100ms",
    "profile": "paper",
    "verify": "0",
    "kind": "disaggregated",
}
"""The standard small question; its decode pool binds and it takes milliseconds once compiled."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a command line left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out, parse_constant=pytest.fail)


def command_line(command: str, *extra: str, **changes: str | None) -> list[str]:
    """The small question with changes; None takes a flag away."""
    flags = SMALL | changes
    pairs = [("--" + k.replace("_", "-"), v) for k, v in flags.items() if v is not None]
    return [command, *(text for pair in pairs for text in pair), *extra]


@pytest.fixture(scope="session", autouse=True)
def _quiet_process():
    """Keeps the user's cache and JAX's precision out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLUIDSERVE_NO_CACHE", "1")
        patch.setenv("COLUMNS", "100")
        yield


@pytest.fixture(autouse=True)
def _precision_as_before():
    wide = bool(jax.config.read("jax_enable_x64"))
    yield
    jax.config.update("jax_enable_x64", wide)


@pytest.fixture
def ask(capsys) -> Callable[..., Answer]:
    """Asks the small question with changes: ``ask("plan", "--json", ttft="1s")``."""

    def asked(command: str, *extra: str, **changes: str | None) -> Answer:
        capsys.readouterr()
        code = main(command_line(command, *extra, **changes))
        captured = capsys.readouterr()
        return Answer(code=code, out=captured.out, err=captured.err)

    return asked


@pytest.fixture
def refused(ask) -> Callable[..., str]:
    """Asks, expects exit code 2, one line on stderr and nothing on stdout; returns the line."""

    def asked(command: str, *extra: str, **changes: str | None) -> str:
        answer = ask(command, *extra, **changes)
        assert answer.code == 2, answer
        assert answer.out == ""
        lines = answer.err.splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("error: ")
        return lines[0]

    return asked
