"""Dependencies point one way: a part of the package imports only parts to the left of it."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "fluidserve"

GROUND = ("_numerics", "_pytree", "_typing", "errors", "status", "units")
ORDER = (
    *("specs", "results", "timing", "queueing", "stages", "deploy", "sampled", "goodput"),
    *("problem", "eventsim", "search", "verify", "io", "report", "runtime", "cli"),
)
"""From left to right. `GROUND` lies left of all and may import within itself."""
ONLY = {
    "queueing": {"_numerics", "_pytree", "_typing"},
    "eventsim": {"_numerics", "_pytree", "_typing", "units", "errors", "specs", "timing"},
    "runtime": set(),
    "testing": set(),
    "__init__": set(),
    "__main__": {"cli"},
}
"""Parts that import less than all to the left of them. The simulator checks the formulas, so it
must share none of their code."""
LIBRARIES = {
    "pydantic": {"io", "report", "cli"},
    "rich": {"io", "report", "cli"},
    "pandas": {"io", "report", "cli"},
    "typer": {"cli"},
    "matplotlib": {"report"},
}
"""Libraries that only some parts may import."""

FILES = sorted(PACKAGE.rglob("*.py"))


def part_of(file: Path) -> str:
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


def imports_of(source: str) -> set[str]:
    """Full dotted names of everything a source imports, at the top or inside functions."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def violations(part: str, source: str) -> list[str]:
    left = {*GROUND, *ORDER[: ORDER.index(part)]} if part in ORDER else set(GROUND)
    may = ONLY.get(part, left) | {part}
    bad = []
    for name in sorted(imports_of(source)):
        top, _, rest = name.partition(".")
        if top == "fluidserve" and rest.split(".")[0] not in may:
            bad.append(f"{part} imports {name}")
        if part not in LIBRARIES.get(top, {part}):
            bad.append(f"{part} imports {top}")
    return bad


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_imports_point_left(file):
    assert part_of(file) in {*GROUND, *ORDER, *ONLY}, "give the new part its place in ORDER"
    assert violations(part_of(file), file.read_text()) == []


def test_only_runtime_touches_the_configuration_of_jax():
    def touches(source: str) -> bool:
        names = {
            ast.unparse(n) for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Attribute)
        }
        return "jax.config" in names or any(n.startswith("jax.config") for n in imports_of(source))

    assert [str(f.relative_to(PACKAGE)) for f in FILES if touches(f.read_text())] == ["runtime.py"]


def test_a_wrong_import_is_noticed():
    assert violations("eventsim", "from fluidserve.stages import decode")
    assert violations("deploy", "def f():\n    import fluidserve.search.plan")
    assert violations("search", "from fluidserve import runtime")
    assert violations("queueing", "from fluidserve.specs.slo import Slo")
    assert violations("search", "import rich.table")
    assert not violations("search", "from fluidserve.deploy import latency\nimport jax")
