"""docs/troubleshooting.md is for people: short cells, and no reason that nobody explains."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dra.claims.reasons import NodeReason, Reason
from tests.docs.test_failures_table import ROOT

DOCS = ROOT / "docs"
PAGE = (DOCS / "troubleshooting.md").read_text()
LONGEST = 260
_REASON = re.compile(r"`([A-Z][A-Za-z]+)`")
FOREIGN = {"Terminating", "Ready", "FailedPrepareDynamicResources", "FailedScheduling"}
"""Words of Kubernetes."""

OF_THE_NODE = "## The node offers nothing"
"""Reasons of MigNodes are explained below it; not all of them are events."""


def cells() -> list[str]:
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    return [cell.strip() for line in lines for cell in line.strip("|").split("|")]


def test_a_cell_is_read_at_a_glance() -> None:
    assert len(cells()) > 60
    assert [cell for cell in cells() if len(cell) > LONGEST] == []


def test_every_reason_is_explained_by_the_page_of_events_or_below_the_node() -> None:
    events = set(_REASON.findall((DOCS / "events.md").read_text()))
    before, _, node = PAGE.partition(OF_THE_NODE)
    assert set(_REASON.findall(before)) - FOREIGN <= events | set(_REASON.findall(node))


@pytest.mark.parametrize("page", ["troubleshooting.md", "failures.md", "observability.md"])
def test_pages_that_name_events_link_to_where_they_are_explained(page: str) -> None:
    assert "(events.md)" in (DOCS / page).read_text()


def test_the_catalogue_sends_operators_to_their_page() -> None:
    intro = (DOCS / "failures.md").read_text().partition("\n## ")[0]
    assert "(troubleshooting.md)" in intro


def test_no_page_but_that_of_events_says_what_an_event_s_reason_means() -> None:
    """A table whose first column is a reason of an event, and that has no other use."""
    found = []
    for page in sorted(Path(DOCS).glob("*.md")):
        if page.name in {"events.md", "kubectl-mig.md", "troubleshooting.md"}:
            continue
        rows = re.findall(r"^\| `([A-Z][A-Za-z]+)` \|", page.read_text(), flags=re.MULTILINE)
        found += [f"{page.name}: {r}" for r in rows if r in {*Reason, *NodeReason}]
    assert found == []
