"""docs/hardware.md: every row has its grade and source, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

from kubeletplugin.check.report import Item
from sim.nvml.products import OTHERS

PAGE = Path(__file__).parents[2] / "docs/hardware.md"
GRADES = {"documented", "read", "run", "reported", "inferred", "open"}


def rows() -> list[list[str]]:
    """The cells of every row about a belief."""
    lines = PAGE.read_text().partition("## NVML: the session")[2].splitlines()
    cells = [[c.strip() for c in each.strip("|").split("|")] for each in lines if each[:2] == "| "]
    return [row for row in cells if row[0] != "belief"]


def test_every_row_has_a_belief_a_grade_and_a_source() -> None:
    assert len(rows()) > 40
    for belief, known, _ in rows():
        grade, _, source = known.partition(": ")
        assert belief
        assert grade in GRADES, belief
        assert source or grade == "open", belief


def test_every_variant_of_the_simulator_and_every_item_of_the_check_tries_a_row() -> None:
    tried = {word for row in rows() for word in re.findall("`([^`]+)`", row[2])}
    assert tried == OTHERS.keys() | {str(item) for item in Item}
