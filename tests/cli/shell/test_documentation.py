"""docs/kubectl-mig.md names every reason, code, command, check and field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.explaining.model import Progress, Why
from cli.shell.arguments import parser
from cli.shell.exits import Exit
from dra.allocator.explain.answers import AnswerReason
from dra.claims.reasons import Reason
from dra.pods.nodefit import MisfitReason
from tests.cli.conftest import Mig
from tests.cli.world import World
from tests.controller.helpers.objects import gpu, instance

PAGE = (Path(__file__).parents[3] / "docs/kubectl-mig.md").read_text()
_FENCES = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
NAMED = set(re.findall(r"`([^`\n]+)`", _FENCES.sub("", PAGE)))
_NOT_OF_WAITING = {
    Reason.ALLOCATED,
    Reason.NOT_MADE,
    Reason.CLASS_CONFLICT,
    Reason.EXTENDED_RESOURCE_TAKEN,
    Reason.EVICTED,
    Reason.NOT_EVICTED,
    Reason.NODE_CLASS,
    Reason.MIGNODE_UNREADABLE,
}
_OF_THE_CONTROLLER = {MisfitReason.LEFT_OUT}
"""Answers that need what the controller remembers; it says them by the pod's condition."""


def test_every_reason_and_state_is_explained() -> None:
    reasons = {r for r in Reason if r not in _NOT_OF_WAITING}
    known = {*Why, *AnswerReason, *MisfitReason, *Progress, *reasons} - _OF_THE_CONTROLLER
    assert not {str(r) for r in known} - NAMED
    assert not {str(r) for r in (*_OF_THE_CONTROLLER, Reason.NOT_MADE)} & NAMED


def test_every_exit_code_is_explained() -> None:
    assert not {code for code in Exit if f"\n| {int(code)} | " not in PAGE}


def test_every_command_is_in_the_table() -> None:
    commands = next(a.choices for a in parser()._actions if isinstance(a.choices, dict))
    looking = {"map", "explain", "profiles", "doctor", "lint", "convert"}
    assert set(commands) == {*looking, "drain", "resume", "release", "kueue", "bundle"}
    assert not {c for c in commands if f"`{c}" not in PAGE}


@pytest.mark.parametrize(
    "line",
    [
        ["map"],
        ["profiles"],
        ["explain", "waiting"],
        ["explain", "runner"],
        ["doctor"],
        ["lint", __file__],
        ["convert", __file__],
        ["drain", "node-a"],
        ["resume", "node-a"],
        ["release", "c", "wanted"],
        ["bundle", "--file", "{folder}/b.tar.gz"],
        ["kueue"],
        ["map", "nowhere"],
    ],
    ids=" ".join,
)
def test_every_field_of_the_json_is_in_the_table(
    world: World, mig: Mig, line: list[str], tmp_path: Path
) -> None:
    world.add_classes("1g.5gb", "7g.40gb")
    made = instance("1g.5gb", 6, state="foreign")
    world.add_node("node-a", gpu(0, "node-a", instances=(made,)))
    world.hold("c", "node-a", "gpu-0-mig-1g5gb-19-0", pod_name="runner")
    world.add_claim("wanted")
    for name in ("c", "wanted"):
        world.set_finalizers(name)
    made_pod = world.add_pod("waiting", "wanted")
    world.tell(made_pod, "WaitingForSlice", "it waits")
    shown = mig(*(w.format(folder=tmp_path) for w in line), "-o", "json").json
    assert f"| `{shown['kind']}` |" in PAGE
    assert not set(_fields(shown)) - NAMED


def _fields(value: Any, *, free: bool = False) -> Iterator[str]:
    """The names of all fields; the keys of some mappings are data."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not free:
                yield key
            data = key in ("placeable", "summary", "unreadable", "notEvicted")
            if key != "configuration":  # its fields are Kueue's
                yield from _fields(inner, free=data)
    if isinstance(value, list):
        for inner in value:
            yield from _fields(inner)
