"""docs/hardware.md: every row has its source and grade, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

from kubeletplugin.check.report import Item
from sim.nvml.products import OTHERS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/hardware.md"
GRADES = {"documented", "read", "run", "reported", "inferred", "open"}
_ID = re.compile(r"[A-Z]\d+[a-z]?")
_CODE = re.compile(r"`([^`]+)`")


def rows() -> list[list[str]]:
    """The cells of every line of the tables that begins with an id."""
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if line.startswith("|") and _ID.fullmatch(cells[0]):
            found.append(cells)
    return found


def test_every_row_has_an_id_of_its_own_a_belief_a_source_and_a_grade() -> None:
    ids = [row[0] for row in rows()]
    assert len(ids) == len(set(ids)) > 40
    for row in rows():
        _, belief, source, grade, _ = row
        assert belief, row
        assert source, row
        assert grade in GRADES, row
        assert not source.startswith("none") or grade == "open", row


def test_every_variant_of_the_simulator_and_every_item_of_the_check_tries_a_row() -> None:
    tried = {word for row in rows() for word in _CODE.findall(row[4])}
    assert tried == OTHERS.keys() | {str(item) for item in Item}
