"""The table itself: every row that a formula must meet is cited by a test that can fail."""

import re
from pathlib import Path

import pytest
from lecture_rows import row, rows

SECTIONS = {"2.1", "2.2", "5.1", "5.2", "5.4", "9", "10"}


def test_every_formula_row_is_cited():
    tests = Path(__file__).parent.glob("test_*.py")
    cited = set(re.findall(r'"([a-z0-9-]+)"', "".join(t.read_text("utf-8") for t in tests)))
    wanted = {
        r.id
        for r in rows()
        if r.section in SECTIONS and r.kind in ("exact", "physics", "simulated")
    }
    # placements of whole clusters, tested with the algorithms that find them
    elsewhere = {r.id for r in rows() if r.id.startswith("alg")}
    assert wanted - elsewhere <= cited


def test_every_row_on_phases_interference_and_ratios_is_shown():
    """Experiments show rows that no formula meets alone, with our number beside the lecture's."""
    pages = Path(__file__).parents[2].glob("experiments/0*/README.md")
    shown = set(re.findall(r"^\| `([a-z0-9-]+)` \|", "\n".join(p.read_text() for p in pages), re.M))
    early = {r.id for r in rows() if r.section[0] in "234"}
    assert len(early) > 30
    assert early <= shown


def test_ids_are_unique():
    ids = [r.id for r in rows()]
    assert len(ids) == len(set(ids)) > 60


@pytest.mark.parametrize(
    "id", [r.id for r in rows() if r.kind in ("exact", "physics") and r.tolerance != "trend"]
)
def test_comparison_can_fail(id):
    tolerance = row(id).tolerance
    off = 1e-6 if tolerance == "exact" else 1.01 * float(tolerance.removesuffix("%")) / 100
    assert row(id).number == row(id).expected
    assert row(id).number * (1 + off) != row(id).expected
    assert row(id).number * (1 - off) != row(id).expected
