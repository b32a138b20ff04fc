"""docs/hardware.md: every row is whole, and what it names exists."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from kubeletplugin.check.report import Item
from sim.nvml.products import OTHERS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/hardware.md"
HEADER = "| id | belief | relied on in | source | grade | if it is otherwise | on hardware |"
COLUMNS = 7
FEWEST = 40
GRADES = {"documented", "read", "run", "reported", "inferred", "open"}
SHORTEST_REASON = 10
_ID = re.compile(r"[A-Z]\d+")
_VARIANT = re.compile(r"variant `([^`]+)`")
_CODE = re.compile(r"`([^`]+)`")


def rows() -> list[list[str]]:
    """The cells of every line of the tables that begins with an id."""
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if line.startswith("|") and _ID.fullmatch(cells[0]):
            found.append(cells)
    return found


def modules() -> set[str]:
    """Modules of the programs on the node, by their last names."""
    folders = [p for name in ("kubeletplugin", "cdi", "dra") for p in (ROOT / name).rglob("*.py")]
    return {p.name for p in folders} | {f"{p.parent.name}/{p.name}" for p in folders}


def test_there_are_enough_rows_and_each_has_its_own_id() -> None:
    count = Counter(row[0] for row in rows())
    assert len(count) >= FEWEST
    assert [i for i, n in count.items() if n > 1] == []


def test_each_table_has_the_columns_of_the_others() -> None:
    tables = PAGE.read_text().split("\n## ")[1:]
    assert [t.splitlines()[0] for t in tables if HEADER not in t] == []


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_row_is_complete_and_what_it_names_exists(row: list[str]) -> None:
    assert len(row) == COLUMNS
    assert all(row)
    _, _, relied, source, grade, otherwise, result = row
    named = _CODE.findall(relied)
    assert named
    assert set(named) <= modules()
    assert grade in GRADES
    assert source != "none" or grade == "open"
    assert set(_VARIANT.findall(otherwise)) <= OTHERS.keys()
    if otherwise.startswith("none"):
        assert len(otherwise.removeprefix("none: ")) > SHORTEST_REASON
    seen, _, settles = result.partition("; ")
    assert seen == "none", "a result names GPU, driver and date, and this test its form"
    if settles.startswith("no item"):
        assert len(settles.removeprefix("no item: ")) > SHORTEST_REASON
    else:
        items = [word for word in _CODE.findall(settles) if word in set(Item)]
        assert items, settles


def test_every_variant_of_the_simulator_is_named_by_a_row() -> None:
    named = {name for row in rows() for name in _VARIANT.findall(row[5])}
    assert named == OTHERS.keys()


def test_every_item_of_the_check_is_named_by_a_row() -> None:
    named = {word for row in rows() for word in _CODE.findall(row[6])}
    assert {str(item) for item in Item} - named == set()
