"""docs/troubleshooting.md has every reason of every event, with what the code says of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra.claims.reasons import NodeReason, Reason

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/troubleshooting.md"
OBJECTS = {"Pod", "ResourceClaim", "Node", "DeviceClass"}
PARTS = {"### From the controller": Reason, "### From the node's plugin": NodeReason}


def rows(title: str) -> list[list[str]]:
    """The cells of the table under a title."""
    part = PAGE.read_text().partition(f"{title}\n")[2].partition("\n##")[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in part.splitlines()
        if line.startswith("| `")
    ]


@pytest.mark.parametrize("title", PARTS)
def test_every_reason_of_the_code_has_one_row_and_every_row_is_one(title: str) -> None:
    documented = [row[0].strip("`") for row in rows(title)]
    known = {reason.value for reason in PARTS[title]}
    lacking, strange = sorted(known - set(documented)), sorted(set(documented) - known)
    assert not lacking, f"docs/troubleshooting.md, '{title}', lacks a row for {lacking}: add it"
    assert not strange, (
        f"docs/troubleshooting.md, '{title}', has rows for {strange}, which are not in "
        f"{PARTS[title].__name__} of dra/claims/reasons.py: take them away"
    )
    assert len(documented) == len(known), (
        f"docs/troubleshooting.md, '{title}', has two rows for one reason"
    )


@pytest.mark.parametrize("title", PARTS)
def test_a_row_says_type_object_meaning_and_remedy(title: str) -> None:
    for row in rows(title):
        _, kind, objects, meaning, remedy = row
        assert kind in {"Normal", "Warning"}, row
        assert set(objects.split(", ")) <= OBJECTS, row
        assert meaning, row
        assert remedy, row


_MEMBER = re.compile(r"NodeReason\.([A-Z_]+)")
_ABOUT = {"report_node": "Node", "report_claim": "ResourceClaim"}


def emitted() -> Iterator[tuple[str, str, str]]:
    """Reason, type and object of every event for which the plugin's text names the reason."""
    for path in (ROOT / "kubeletplugin").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            if call.func.attr in _ABOUT:
                warning = any(ast.unparse(k) == "warning=True" for k in call.keywords)
                for argument in call.args:
                    if match := _MEMBER.fullmatch(ast.unparse(argument)):
                        kind = "Warning" if warning else "Normal"
                        yield NodeReason[match[1]].value, kind, _ABOUT[call.func.attr]


def test_the_types_and_objects_are_those_of_the_plugin() -> None:
    table = {row[0].strip("`"): row for row in rows("### From the node's plugin")}
    found = sorted(set(emitted()))
    assert len(found) > 10
    for reason, kind, about in found:
        assert table[reason][1] == kind, reason
        assert about in table[reason][2].split(", "), reason
