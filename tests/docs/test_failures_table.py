"""docs/failures.md has every failure of the catalogue once, and names tests that exist."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
PAGE = ROOT / "docs/failures.md"
COLUMNS = 4


def numbered(group: str, last: int, *more: str) -> list[str]:
    return [*(f"{group}{n}" for n in range(1, last + 1)), *more]


CATALOGUE = [
    *numbered("A", 17, "A13b", "A13c", "A14b", "A14c"),
    *numbered("B", 11),
    *numbered("C", 22),
    *numbered("D", 15),
    *numbered("E", 11, "E9b", "E9c"),
    *numbered("F", 23, "F1b", "F1c", "F6b", "F6c"),
    *numbered("G", 12, "G1b", "G1c"),
    *numbered("H", 12, "H5b", "H5c", "H7b", "H7c", "H7d", "H7e", "H7f", "H7g"),
    *numbered("I-", 6),
]
_ID = re.compile(r"[A-I]-?\d+[a-z]?")


def rows() -> list[list[str]]:
    """The cells of every line of the tables that begins with an id."""
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if line.startswith("|") and _ID.fullmatch(cells[0]):
            found.append(cells)
    return found


@cache
def functions(path: Path) -> frozenset[str]:
    """Test functions of a module, as its text has them."""
    tree = ast.parse(path.read_text())
    return frozenset(n.name for n in tree.body if isinstance(n, ast.FunctionDef)) | frozenset(
        f"{c.name}::{n.name}"
        for c in tree.body
        if isinstance(c, ast.ClassDef)
        for n in c.body
        if isinstance(n, ast.FunctionDef)
    )


def test_every_failure_of_the_catalogue_has_exactly_one_row() -> None:
    count = Counter(row[0] for row in rows())
    assert sorted(count) == sorted(CATALOGUE)
    assert [i for i, n in count.items() if n > 1] == []


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_row_is_complete_and_names_tests_that_exist_or_says_why_there_is_none(
    row: list[str],
) -> None:
    assert len(row) == COLUMNS
    assert all(row)
    shown = row[-1]
    if shown.startswith("no test: "):
        assert len(shown) > len("no test: ") + 20
        return
    for name in shown.split(", "):
        path, _, function = name.partition("::")
        assert function.rpartition("::")[2].startswith("test_"), name
        assert (TESTS / path).is_file(), name
        assert function in functions(TESTS / path), name


def test_the_words_that_programs_read_are_those_of_the_programs() -> None:
    words = set(re.findall(r"`([A-Z][A-Za-z]+)`", PAGE.read_text()))
    code = "\n".join(
        p.read_text()
        for package in ("dra", "kubeletplugin", "controller")
        for p in (ROOT / package).rglob("*.py")
    )
    foreign = {"Ready", "Healthy", "Unhealthy", "Unknown", "FailedPrepareDynamicResources"}
    assert {w for w in words - foreign if f'"{w}"' not in code and w not in code} == set()
