"""docs/kubectl-mig.md names every reason, code, command, check and field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.explaining.findings import REMEDIES, Why
from cli.page.server import PageServer
from cli.program import PROGRAM
from dra.allocator.explain.answers import AnswerReason
from dra.claims.reasons import Reason
from dra.pods.nodefit import MisfitReason
from dra.replay.form import VERSION, Header, Ready, encode
from tests.cli.conftest import Mig
from tests.cli.world import World
from tests.controller.helpers.objects import gpu, instance

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/kubectl-mig.md").read_text()
REASONS = (ROOT / "docs/troubleshooting.md").read_text().partition("\n## The node offers")[2]
_FENCES = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
NAMED = set(re.findall(r"`([^`\n]+)`", _FENCES.sub("", PAGE) + REASONS))
_NOT_OF_WAITING = {
    Reason.ALLOCATED,
    Reason.NOT_MADE,
    Reason.CLASS_CONFLICT,
    Reason.EXTENDED_RESOURCE_TAKEN,
    Reason.EVICTED,
    Reason.NOT_EVICTED,
    Reason.MAKING_ROOM,
    Reason.MOVED,
    Reason.PREEMPTED,
    Reason.ROOM_NOT_MADE,
    Reason.NODE_CLASS,
    Reason.MIGNODE_UNREADABLE,
}
_WITHOUT_REMEDY = {
    *(Why.NOT_OURS, Why.NO_CLAIMS, Why.SOON, Why.MADE_FIRST, Why.PREPARING),
    *(AnswerReason.FITS, AnswerReason.NO_SUCH_DEVICE, AnswerReason.UNAVAILABLE),
    *(MisfitReason.NO_NODE, MisfitReason.BOUND, MisfitReason.ELSEWHERE, MisfitReason.LEFT_OUT),
    *(Reason.WAITING, Reason.UNSUPPORTED, Reason.TOO_MANY_TEMPLATES, Reason.SCHEDULER),
    *(Reason.NOTHING_TO_SEE, Reason.NEXT_IN_LINE, Reason.TAKEN_BACK),
}
"""Reasons about which nothing is to be done, or whose message says it."""


LINES = [
    ["map"],
    ["profiles"],
    ["plan", "-p", "7g.40gb"],
    ["defrag", "-p", "7g.40gb"],
    ["top", "-A"],
    ["ui"],
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
    ["replay", "{folder}/decisions.jsonl"],
    ["map", "nowhere"],
]
"""Each command at least once."""


def test_every_reason_has_a_remedy_or_needs_none() -> None:
    reasons = {*Why, *AnswerReason, *MisfitReason, *Reason} - _NOT_OF_WAITING
    missing = {str(r) for r in reasons - REMEDIES.keys() - _WITHOUT_REMEDY}
    assert not missing, (
        f"say in cli/explaining/findings.py what to do about {sorted(missing)}, or, where the "
        f"message says it or there is nothing to be done, name them in {Path(__file__).name}"
    )


def test_the_json_of_every_command_is_tried() -> None:
    missing = sorted(set(PROGRAM.commands) - {line[0] for line in LINES})
    assert not missing, f"add a line with {missing} to LINES of {Path(__file__).name}"


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_every_field_of_the_json_is_in_the_table(
    world: World, mig: Mig, line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PageServer, "serve_forever", lambda _: None)  # it would, until interrupted
    world.add_classes("1g.5gb", "7g.40gb")
    made = instance("1g.5gb", 6, state="foreign")
    world.add_node("node-a", gpu(0, "node-a", instances=(made,)))
    world.hold("c", "node-a", "gpu-0-mig-1g5gb-19-0", pod_name="runner")
    world.add_claim("wanted")
    for name in ("c", "wanted"):
        world.set_finalizers(name)
    made_pod = world.add_pod("waiting", "wanted")
    world.tell(made_pod, "WaitingForSlice", "it waits")
    header = Header(version=VERSION, driver="d", begun="")
    lines = (encode(line) + b"\n" for line in (header, Ready()))
    (tmp_path / "decisions.jsonl").write_bytes(b"".join(lines))
    shown = mig(*(w.format(folder=tmp_path) for w in line), "-o", "json").json
    where = "docs/kubectl-mig.md, in '| command | `kind` | fields |',"
    assert f"| `{shown['kind']}` |" in PAGE, f"{where} lacks the kind {shown['kind']}"
    missing = sorted(set(_fields(shown)) - NAMED)
    assert not missing, f"{where} lacks fields of {shown['kind']}: {missing}"


def _fields(value: Any, *, free: bool = False) -> Iterator[str]:
    """The names of all fields; the keys of some mappings are data."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not free:
                yield key
            data = key in ("placeable", "summary", "unreadable", "notEvicted", "room")
            if key != "configuration":  # its fields are Kueue's
                yield from _fields(inner, free=data)
    if isinstance(value, list):
        for inner in value:
            yield from _fields(inner)
