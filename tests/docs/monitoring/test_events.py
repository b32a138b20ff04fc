"""docs/troubleshooting.md has every reason of every event once, with what the code says of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.explaining.findings import Why
from dra.allocator.explain.answers import AnswerReason
from dra.claims.reasons import NodeReason, Reason
from dra.claims.remedies import remedy
from dra.gpu.inventory import GpuReason
from dra.pods.nodefit import MisfitReason

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/troubleshooting.md"
TEXT = PAGE.read_text()
OBJECTS = {"Pod", "ResourceClaim", "Node", "DeviceClass"}
PARTS = {
    "### From the controller": (Reason, {"Warning", "Pod", "ResourceClaim"}),
    "### From the node's plugin": (NodeReason, {"Warning", "Node"}),
}
"""Reasons of each table, and what holds of a row that does not say otherwise."""

_REASON = re.compile(r"`([A-Z][A-Za-z]+)`")
OF_KUBERNETES = {
    *("Terminating", "Ready", "Unknown", "FailedPrepareDynamicResources", "FailedScheduling")
}
CONDITIONS = {"PrepareFailing", "SliceMade", "CreationFailed"}
"""Conditions of a claim's device, which the symptoms explain themselves."""


def rows(title: str) -> list[list[str]]:
    """Reason, type and objects in words, meaning and remedy of each row below a title."""
    found = []
    for line in TEXT.partition(f"{title}\n")[2].partition("\n##")[0].splitlines():
        if line.startswith("| `"):
            first, *rest = (cell.strip() for cell in line.strip("|").split("|"))
            reason, _, about = first.partition(" ")
            found.append([reason.strip("`"), about.strip("()"), *rest])
    return found


def about(words: str, usual: set[str]) -> tuple[str, set[str]]:
    """Type and objects of a row's events."""
    told = set(re.split("[;,] ", words)) if words else set()
    assert told <= {"Normal", *OBJECTS}, words
    objects = (told & OBJECTS) or (usual & OBJECTS)
    return ("Normal" if "Normal" in told else "Warning"), objects


@pytest.mark.parametrize("title", PARTS)
def test_every_reason_of_the_code_has_one_row_and_every_row_is_one(title: str) -> None:
    documented = [row[0] for row in rows(title)]
    known = {reason.value for reason in PARTS[title][0]}
    lacking, strange = sorted(known - set(documented)), sorted(set(documented) - known)
    assert not lacking, f"docs/troubleshooting.md, '{title}', lacks a row for {lacking}: add it"
    assert not strange, (
        f"docs/troubleshooting.md, '{title}', has rows for {strange}, which are not in "
        f"{PARTS[title][0].__name__} of dra/claims/reasons.py: take them away"
    )
    assert len(documented) == len(known), (
        f"docs/troubleshooting.md, '{title}', has two rows for one reason"
    )


def test_every_reason_of_an_explanation_has_its_row() -> None:
    told = set(_REASON.findall(TEXT.partition("## Reasons")[2].partition("## Permanent")[0]))
    known = {str(each) for reasons in (Why, AnswerReason, MisfitReason) for each in reasons}
    assert known - told == set(), "docs/troubleshooting.md, 'From `kubectl mig explain`'"


def test_every_reason_that_a_symptom_or_a_failure_names_has_a_row() -> None:
    symptoms, _, rest = TEXT.partition("## The node offers nothing")
    reasons, _, failures = rest.partition("## Permanent failures of Prepare")
    named = set(_REASON.findall(symptoms + failures)) - OF_KUBERNETES - CONDITIONS
    assert named <= set(_REASON.findall(reasons))


_MEMBER = re.compile(r"NodeReason\.([A-Z_]+)")
_ABOUT = {
    "report_node": ["Node"],
    "report_claim": ["ResourceClaim"],
    "report_device": ["ResourceClaim", "Pod"],
}


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
                        for subject in _ABOUT[call.func.attr]:
                            yield NodeReason[match[1]].value, kind, subject


def test_the_types_and_objects_are_those_of_the_plugin() -> None:
    title = "### From the node's plugin"
    table = {reason: about(words, PARTS[title][1]) for reason, words, *_ in rows(title)}
    found = sorted(set(emitted()))
    assert len(found) > 10
    for reason, kind, subject in found:
        assert table[reason][0] == kind, reason
        assert subject in table[reason][1], reason


def plain(text: str) -> str:
    """Text without the marks of Markdown, addresses of links, and what stands in brackets."""
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = re.sub(r" ?\([^()]*\)", "", text)
    return re.sub(r"[\[\]`]| +(?=[ ,])", "", text).strip()


def test_the_tables_have_the_remedies_that_the_programs_tell() -> None:
    first, last = PARTS
    titles = (first, "## The node offers nothing", last)
    table = {row[0]: row[-1] for title in titles for row in rows(title)}
    reasons = [r for r in dict.fromkeys([*GpuReason, *NodeReason, *Reason]) if remedy(r)]
    told = {r: plain(remedy(r, node="", gpu="", uuid="<uuid>")) for r in reasons if r in table}
    assert len(told) > 20
    assert {r: words for r, words in told.items() if words not in plain(table[r])} == {}


def test_every_reason_of_a_gpu_has_a_remedy() -> None:
    assert [r.name for r in GpuReason if not remedy(r)] == ["UNAVAILABLE"]
