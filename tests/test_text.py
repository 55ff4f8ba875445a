"""What the project's files say holds outside the place where they were written."""

import re
import subprocess
from pathlib import Path

import pytest

from fluidserve.cli import options
from fluidserve.status import DOUBT_TEXT, RED, Binding

ROOT = Path(__file__).resolve().parents[1]

# spelled with brackets, so that this file passes its own test
FORBIDDEN = {
    "a number of a ticket": re.compile(r"(?<![\w&])#\d{1,5}\b|\b(?:issue|ticket)s?\s+#?\d", re.I),
    "a path of one machine": re.compile(r"(?<![\w./])/(?:[w]ork|[r]oot|[h]ome)/"),
    "the host of a registry": re.compile(r"[p]ypi\.org|[p]ythonhosted\.org|[n]pmjs\.", re.I),
}
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")


def tracked_files() -> list[str]:
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    try:
        done = subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout, so that the project's own files are not known")
    names = [name for name in done.stdout.decode().split("\0") if name]
    return [name for name in names if (ROOT / name).is_file()]


def faults(text: str) -> list[str]:
    return [f"{what}: {found[0]}" for what, p in FORBIDDEN.items() for found in p.finditer(text)]


def test_files_name_no_tickets_machines_or_registries():
    found = {}
    for name in tracked_files():
        picture = name.endswith(".png")  # its bytes are no text
        text = "" if picture else (ROOT / name).read_bytes().decode("utf-8", "replace")
        if here := faults(name + "\n" + text):
            found[name] = here
    assert found == {}


def test_links_between_documents_lead_somewhere():
    broken = []
    for name in tracked_files():
        if name.endswith(".md"):
            page = ROOT / name
            for target in LINK.findall(page.read_text()):
                inside = "://" not in target and not target.startswith("mailto:")
                if inside and not (page.parent / target).exists():
                    broken.append(f"{name}: {target}")
    assert broken == []


def test_definitions_list_every_label_and_reason():
    lines = (ROOT / "docs" / "reference" / "definitions.md").read_text().splitlines()
    for binding in Binding:
        assert any(line.startswith(f"| `{binding.label}` |") for line in lines), binding
    for doubt, sentence in DOUBT_TEXT.items():
        level = "red" if doubt in RED else "amber"
        assert any(line.startswith(f"| {sentence} | {level} |") for line in lines), sentence


def test_the_reference_lists_every_flag():
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    groups = ("QUESTION", "TRAFFIC", "PROMISE", "ENGINE", "FIT", "SIMULATION", "CURVE", "ANSWER")
    names = [name for group in groups for name in getattr(options, group)]
    absent = [n for n in names if not re.search(rf"`--{n.replace('_', '-')}[ `]", page)]
    assert absent == []


@pytest.mark.parametrize("text", ["see #%", "Issue %", "in *work/x", "py*pi.org"])
def test_a_fault_is_noticed(text):
    assert faults(text.replace("%", "12").replace("y*p", "yp").replace("*", "/"))


@pytest.mark.parametrize("text", ["#0072B2", "1 / 3", "a/work/b", "&#39;", "in 1993, p. 7"])
def test_ordinary_text_has_no_fault(text):
    assert faults(text) == []
