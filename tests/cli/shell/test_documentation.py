"""Every reason has a remedy, and the JSON of every command keeps its fields."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cli.explaining.findings import Why, finding
from cli.program import PROGRAM
from dra.allocator.explain.answers import AnswerReason
from dra.claims.reasons import Reason
from dra.pods.nodefit import MisfitReason
from tests.cli.conftest import Mig
from tests.cli.world import World
from tests.controller.helpers.objects import gpu, instance

_NOT_OF_WAITING = {
    Reason.ALLOCATED,
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
    *(Why.NOT_OURS, Why.NO_CLAIMS, Why.SOON),
    *(AnswerReason.FITS, AnswerReason.NO_SUCH_DEVICE, AnswerReason.UNAVAILABLE),
    *(MisfitReason.NO_NODE, MisfitReason.BOUND, MisfitReason.ELSEWHERE, MisfitReason.LEFT_OUT),
    *(Reason.WAITING, Reason.UNSUPPORTED, Reason.TOO_MANY_TEMPLATES, Reason.SCHEDULER),
    *(Reason.NOTHING_TO_SEE, Reason.NEXT_IN_LINE, Reason.TAKEN_BACK),
}
"""Reasons about which nothing is to be done, or whose message says it."""


LINES = [
    ["map"],
    ["explain", "waiting"],
    ["explain", "runner"],
    ["doctor"],
    ["lint", __file__],
    ["map", "nowhere"],
]
"""Each command with JSON at least once."""

FIELDS = {
    "PlacementMap": """
        allocator blocked claim driverVersion freeMemoryMiB gpus largestPlaceable layout
        memoryMiB memorySlices message migEnabled migUUID mode name namespace nodes
        placeable placement pods productName profile ready reason sharing size
        sliceSharing silence slots start state uid unhealthy uuid
    """,
    "Explanation": """
        at blockers claim device devices events findings gpus kind message migUUID name
        namespace node nodes object placement pods profile reason remedy size slot
        source start state uid unhealthy unread wanted
    """,
    "Diagnosis": "checks message name remedy status summary",
    "LintReport": "field file level line message object remarks summary",
    "Error": "code message reason",
}
"""Names of fields of each kind, at whatever depth."""


def test_every_reason_has_a_remedy_or_needs_none() -> None:
    reasons = {*Why, *AnswerReason, *MisfitReason, *Reason} - _NOT_OF_WAITING
    missing = {str(r) for r in reasons - _WITHOUT_REMEDY if not finding(r, "").remedy}
    assert not missing, (
        "say in cli/explaining/findings.py or dra/claims/remedies.py what to do about "
        f"{sorted(missing)}, or, where the message says it or there is nothing to be done, name "
        f"them in {Path(__file__).name}"
    )


def test_the_json_of_every_command_is_tried() -> None:
    with_json = {
        name
        for name, command in PROGRAM.commands.items()
        if any("json" in getattr(each.type, "choices", ()) for each in command.params)
    }
    missing = sorted(with_json - {line[0] for line in LINES})
    assert not missing, f"add a line with {missing} to LINES of {Path(__file__).name}"


def test_fields_of_the_json_are_added_and_never_renamed_or_removed(world: World, mig: Mig) -> None:
    world.add_classes("1g.5gb", "7g.40gb")
    made = instance("1g.5gb", 6, state="foreign")
    world.add_node("node-a", gpu(0, "node-a", instances=(made,)))
    world.hold("c", "node-a", "gpu-0-mig-1g5gb-19-0", pod_name="runner")
    world.add_claim("wanted")
    made_pod = world.add_pod("waiting", "wanted")
    world.tell(made_pod, "WaitingForSlice", "it waits")
    found: dict[str, set[str]] = {}
    for line in LINES:
        shown = mig(*line, "-o", "json").json
        assert shown.pop("apiVersion") == "cli.mig.dra.dev/v1"
        found.setdefault(shown.pop("kind"), set()).update(_fields(shown))
    assert found == {kind: {*names.split()} for kind, names in FIELDS.items()}


def _fields(value: Any, *, free: bool = False) -> Iterator[str]:
    """The names of all fields; the keys of some mappings are data."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not free:
                yield key
            data = key in ("placeable", "summary", "unreadable")
            yield from _fields(inner, free=data)
    if isinstance(value, list):
        for inner in value:
            yield from _fields(inner)
