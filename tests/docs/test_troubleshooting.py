"""docs/troubleshooting.md explains every reason that it names, and once."""

from __future__ import annotations

import re
from pathlib import Path

from dra.claims.reasons import NodeReason, Reason

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "troubleshooting.md").read_text()
_REASON = re.compile(r"`([A-Z][A-Za-z]+)`")
_ROW = re.compile(r"^\| (`[A-Z][A-Za-z`, ]+`) \|", flags=re.MULTILINE)
FOREIGN = {"Terminating", "Ready", "Unknown", "FailedPrepareDynamicResources", "FailedScheduling"}
"""Words of Kubernetes."""

CONDITIONS = {"PrepareFailing", "SliceMade", "CreationFailed"}
"""Conditions of a claim's device, which the symptoms explain themselves."""


def test_every_reason_that_a_symptom_or_a_failure_names_has_a_row() -> None:
    symptoms, _, rest = PAGE.partition("## The node offers nothing")
    reasons, _, failures = rest.partition("## Permanent failures of Prepare")
    named = set(_REASON.findall(symptoms + failures)) - FOREIGN - CONDITIONS
    assert named <= set(_REASON.findall(reasons))


def test_no_reason_has_two_rows() -> None:
    reasons = PAGE.partition("## Reasons")[2]
    rows = [name for cell in _ROW.findall(reasons) for name in _REASON.findall(cell)]
    both = {*Reason} & {*NodeReason}
    assert {r for r in rows if rows.count(r) > 1} == both


def test_no_other_page_says_what_an_event_s_reason_means() -> None:
    """A table whose first column is a reason of an event, and that has no other use."""
    for page in sorted(DOCS.glob("*.md")):
        if page.name != "troubleshooting.md":
            rows = set(_ROW.findall(page.read_text()))
            told = {name for cell in rows for name in _REASON.findall(cell)}
            assert not told & {*Reason, *NodeReason}, page.name
