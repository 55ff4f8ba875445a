"""The examples in docstrings and in README.md do what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def modules_with_examples() -> list[str]:
    files = sorted((ROOT / "fluidserve").rglob("*.py"))
    parts = [f.relative_to(ROOT).with_suffix("").parts for f in files if ">>> " in f.read_text()]
    return [".".join(p).removesuffix(".__init__") for p in parts]


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_of_a_module(name):
    found = doctest.testmod(importlib.import_module(name), verbose=False)
    assert found.attempted > 0
    assert found.failed == 0


def test_a_wrong_example_is_noticed():
    example = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, None)
    assert doctest.DocTestRunner(verbose=False).run(example, out=lambda _: None).failed == 1
