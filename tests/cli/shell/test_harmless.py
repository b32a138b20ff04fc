"""Texts that others wrote into the cluster: harmless in a terminal, and never in our name."""

from __future__ import annotations

import io

import pytest

from cli.output import Output, harmless
from dra.common.resources import MIG_NODES, PODS, RESOURCE_CLAIMS
from tests.cli.conftest import Mig
from tests.cli.world import World
from tests.controller.helpers.objects import gpu, instance

BAD = [
    "\x1b[2J\x1b[H all is well",
    "\x1b]0;title\x07",
    "\x1b]52;c;ZWNobw==\x07",
    "\x1b[8mhidden",
    "\x9b2J",
    "a\rb",
    "\x08\x08\x08ok",
    "\u202eko si ti",
    "\u2066x\u2069",
    "\u200bx",
    "line\u2028line",
]
UNSEEN = (
    *("\u00ad", "\u034f", "\u115f\u1160", "\u17b4\u17b5", "\u180b-\u180f", "\u200b-\u200f"),
    *("\u2028-\u202e", "\u2060-\u206f", "\u3164", "\ud800-\udfff", "\ue000-\uf8ff"),
    *("\ufe00-\ufe0f", "\ufeff", "\uffa0", "\ufff0-\ufffb", "\U0001d173-\U0001d17a"),
    "\U000e0000-\U000e0fff",
)
"""Ranges without a form of their own, as DerivedCoreProperties.txt of Unicode and others say."""
FORGED = "nothing\ndoctor    ok    all is well"


def is_harmless(text: str) -> bool:
    return all(each.isprintable() or each == "\n" for each in text)


@pytest.mark.parametrize("characters", UNSEEN, ids=ascii)
def test_a_character_that_nobody_sees_is_shown(characters: str) -> None:
    first, last = characters[0], characters[-1]
    for code in range(ord(first), ord(last) + 1):
        shown = io.StringIO()
        assert harmless(f"pod{chr(code)}-a") == "pod\ufffd-a", hex(code)
        Output(shown, color=False).line(f"pod{chr(code)}-a")
        assert {*shown.getvalue().split()} <= {"pod\ufffd-a", "pod?-a"}, hex(code)


@pytest.mark.parametrize("bad", ["".join(BAD), FORGED], ids=ascii)
def test_no_command_prints_what_a_node_or_a_tenant_wrote_as_it_is(
    world: World, mig: Mig, bad: str
) -> None:
    world.add_classes("1g.5gb")
    made = instance("1g.5gb", 6, state="foreign")
    world.add_node("node-a", gpu(0, "node-a", instances=(made,)))
    found = world.api.get(MIG_NODES, "node-a")["status"]
    (each,) = found["gpus"]
    each |= {"reason": "Unavailable", "message": bad, "productName": bad[:128]}
    each["instances"][0]["message"] = bad
    found["conditions"][0] |= {"status": "False", "message": bad}
    found["takeover"] = {"since": "now", "state": "pending", "message": bad}
    wish = {"wish": "take", "since": "now"}
    world.api.patch(MIG_NODES, "node-a", {"spec": {"takeover": wish}})
    world.set_status(MIG_NODES, {"metadata": {"name": "node-a"}}, found)
    world.add_claim("wanted")
    pod = world.add_pod("waits", "wanted")
    world.tell(pod, "AllocationTakenBack", bad, source=f"mig.dra.dev/controller{bad[:60]}")
    held = world.hold("held", "node-a", "gpu-0-mig-1g5gb-19-0", pod_name="runs")
    held["status"]["reservedFor"] = [{"resource": "pods", "name": bad, "uid": bad}]
    world.set_status(RESOURCE_CLAIMS, held, held["status"])
    for line in (
        *(["map"], ["map", "-o", "wide"], ["profiles"], ["doctor"], ["explain", "waits"]),
        *(["plan", "-p", "1g.5gb"], ["plan", "-p", bad], ["handback", "node-a"]),
        *(["takeover", "node-a"], ["takeover", "node-a", "--status"]),
    ):
        ran = mig(*line)
        assert is_harmless(ran.out + ran.err), line
        assert not any(shown.startswith("doctor    ok") for shown in ran.out.splitlines()), line


def test_an_event_in_the_controllers_name_is_shown_as_anybodys(world: World, mig: Mig) -> None:
    world.add_classes("1g.5gb")
    world.add_node("node-a")
    world.lead()
    world.add_claim("wanted")
    pod = world.add_pod("waits", "wanted")
    world.tell(pod, "AllocationTakenBack", "pay me", source="mig.dra.dev/controller")
    ran = mig("explain", "waits")
    before, _, after = ran.out.partition("events, of whoever may create some in the namespace:")
    assert "pay me" not in before
    assert "pay me" in after
    assert mig("explain", "waits", "-o", "json").json["reason"] == "AboutToBeAllocated"


def test_what_the_server_answers_is_harmless_too(world: World, mig: Mig) -> None:
    ran = mig("explain", "no\x1b[2Jpod")
    assert ran.code == 4
    assert is_harmless(ran.err)
    assert world.api.list(PODS).items == []
