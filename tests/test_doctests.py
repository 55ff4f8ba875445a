"""The examples in docstrings and in documents run and do what they say."""

import doctest
import importlib
import re
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


PAGES = ["README.md", "docs/guides/limits.md", "docs/guides/profiles.md"]


@pytest.mark.parametrize("page", PAGES)
def test_examples_of_a_document(page, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {})
    assert "nan" not in capsys.readouterr().out


def test_every_page_with_python_is_run():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    with_python = [str(p.relative_to(ROOT)) for p in pages if "```python" in p.read_text()]
    assert sorted(with_python) == PAGES


def test_a_wrong_example_is_noticed():
    example = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, None)
    assert doctest.DocTestRunner(verbose=False).run(example, out=lambda _: None).failed == 1
