"""Content of the page: what changes, what is cut, and what it costs with 1,000 nodes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from api.mignode import SILENT_SECONDS
from cli.page.content import Content
from dra.common.resources import EVENTS, MIG_NODES, PODS, RESOURCE_CLAIMS, Obj, Resource
from dra.kube.reflector import Change
from dra.kube.timing import rfc3339
from tests.cli.page.scenes import CONDITION
from tests.controller.helpers.objects import (
    DRIVER,
    allocated,
    claim,
    gpu,
    instance,
    mignode,
    request,
)

HOSTILE = "<img src=x onerror=alert(1)>\x1b[2J\u202e\u2066</script>\x00" + "A" * 2**20


class Clock:
    """A clock that stands still unless it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Shown:
    """Content as a reader has it who asks again and again, with a clock that a test moves."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.content = Content(DRIVER, self.clock, wall=self.wall)
        self.version = ""

    def wall(self) -> datetime:
        return datetime.fromtimestamp(self.clock.now, UTC)

    def put(self, resource: Resource, *objects: Obj) -> None:
        for obj in objects:
            self.content.take(resource, Change("added", None, obj))

    def remove(self, resource: Resource, obj: Obj) -> None:
        self.content.take(resource, Change("deleted", obj, None))

    def ask(self, *, later: float = 1.5) -> dict[str, Any]:
        self.clock.now += later
        found = self.content.since(self.version)
        self.version = found["version"]
        return found


def holds(name: str, namespace: str = "team", node: str = "node-a", pod: str = "") -> Obj:
    """A claim with a slice of gpu-0, and who uses it."""
    body = claim(name, request("r", "mig-1g.5gb"))
    body["metadata"] |= {"namespace": namespace, "uid": f"u-{namespace}-{name}"}
    status = allocated(body, node, "gpu-0-mig-1g5gb-19-0")["status"]
    users = [{"resource": "pods", "name": pod or f"pod-{name}", "uid": "p"}]
    return {**body, "status": {**status, "reservedFor": users}}


def waits(name: str, namespace: str = "team", **said: str) -> Obj:
    told = {"type": CONDITION, "status": "False", "reason": "NoRoom", "message": "no room"}
    condition = {**told, "lastTransitionTime": f"2026-01-02T03:04:05Z{name[-5:]}", **said}
    metadata = {"name": name, "namespace": namespace}
    return {"metadata": metadata, "status": {"conditions": [condition]}}


def tells(name: str, namespace: str = "team", **fields: Any) -> Obj:
    about = {"kind": "Pod", "name": "p", "namespace": namespace}
    body = {"reason": "Made", "message": "m", "lastTimestamp": f"2026-01-02T03:04:{name[-2:]}Z"}
    return {
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": about,
        **body,
        **fields,
    }


def owners(answer: dict[str, Any]) -> list[list[str]]:
    return [
        owner
        for node in answer["nodes"]
        for each in node["gpus"]
        for slot in each["slots"]
        for owner in slot["owners"]
    ]


def test_only_what_changed_is_sent_again() -> None:
    shown = Shown()
    shown.put(MIG_NODES, mignode("node-a"), mignode("node-b"))
    first = shown.ask()
    assert first["full"]
    assert [n["name"] for n in first["nodes"]] == ["node-a", "node-b"]
    again = shown.ask()
    assert not again["full"]
    assert again["nodes"] == []
    assert "waiting" not in again
    assert "told" not in again
    shown.put(RESOURCE_CLAIMS, holds("c"))
    (node,) = shown.ask()["nodes"]
    assert node["name"] == "node-a"
    assert owners({"nodes": [node]}) == [["team", "pod-c", "c"]]
    shown.put(MIG_NODES, {**mignode("node-b"), "metadata": {"name": "node-b", "uid": "x"}})
    assert shown.ask()["nodes"] == []
    shown.remove(MIG_NODES, mignode("node-b"))
    assert shown.ask()["names"] == ["node-a"]
    shown.remove(RESOURCE_CLAIMS, holds("c"))
    assert owners(shown.ask()) == []


def test_who_was_away_or_asks_another_server_has_all() -> None:
    shown, other = Shown(), Shown()
    for each in (shown, other):
        each.put(MIG_NODES, mignode("node-a"))
    shown.ask()
    other.version = shown.version
    assert other.ask()["full"]
    other.version = "nonsense"
    assert other.ask()["full"]


def test_a_node_whose_plugin_falls_silent_is_sent_once_more_and_again_when_it_is_back() -> None:
    shown, alive = Shown(), mignode("node-a")
    beats = [rfc3339(datetime.fromtimestamp(at, UTC)) for at in (100.0, 300.0)]
    alive["status"]["lastHeartbeatTime"] = beats[0]
    shown.put(MIG_NODES, alive, mignode("node-b"))
    assert [n["ready"] for n in shown.ask()["nodes"]] == [True, True]
    assert shown.ask(later=SILENT_SECONDS - 10)["nodes"] == []
    (found,) = shown.ask(later=20.0)["nodes"]
    assert (found["name"], found["ready"], found["silentSince"]) == ("node-a", False, beats[0])
    assert "silent" in found["note"]
    assert shown.ask(later=60.0)["nodes"] == []
    shown.clock.now = 300.0
    shown.put(MIG_NODES, {**alive, "status": {**alive["status"], "lastHeartbeatTime": beats[1]}})
    (found,) = shown.ask()["nodes"]
    assert found["ready"]
    assert not found["silentSince"]


def test_a_tenant_with_ten_thousand_pods_or_events_hides_nobody() -> None:
    shown = Shown()
    shown.put(PODS, *(waits(f"w{i:05}", "loud") for i in range(10_000)), waits("quiet", "calm"))
    shown.put(EVENTS, *(tells(f"e{i:05}", "loud") for i in range(10_000)), tells("e01", "calm"))
    found = shown.ask()
    for kind, quiet in (("waiting", "quiet"), ("told", "e01")):
        items, more = found[kind]["items"], found[kind]["more"]
        assert len(items) == 51
        assert quiet in {i.get("id") or i["name"] for i in items if i["namespace"] == "calm"}
        assert more == {"loud": 9_950}
    assert found["waiting"]["reasons"] == [("NoRoom", 10_001)]
    assert found["waiting"]["items"][0]["name"] == "w00000"


def test_many_loud_namespaces_are_cut_too() -> None:
    shown = Shown()
    shown.put(PODS, *(waits(f"w{i}", f"ns-{i % 800}") for i in range(4000)))
    found = shown.ask()["waiting"]
    assert len(found["items"]) == 500
    assert found["more"]["ns-0"] == 4
    assert len(msgspec.json.encode(found)) < 2**20


def test_texts_are_short_and_change_nothing_around_them() -> None:
    shown = Shown()
    shown.put(MIG_NODES, mignode("node-a"))
    shown.put(PODS, waits("w", message=HOSTILE, reason=HOSTILE))
    shown.put(EVENTS, tells("e01", message=HOSTILE, reason=HOSTILE))
    shown.put(RESOURCE_CLAIMS, holds("c", pod=HOSTILE))
    found = shown.ask()
    encoded = msgspec.json.encode(found)
    assert len(encoded) < 20_000
    (waiting,), (told,) = found["waiting"]["items"], found["told"]["items"]
    for text in (waiting["message"], told["message"], waiting["reason"], owners(found)[0][1]):
        assert text.startswith(
            "<img src=x onerror=alert(1)>\ufffd[2J\ufffd\ufffd</script>\ufffdAAA"
        )
        assert text.isprintable()
        assert len(text) <= 400


def test_a_pod_that_waits_no_longer_is_gone() -> None:
    shown = Shown()
    shown.put(PODS, waits("w"), waits("v"))
    shown.ask()
    shown.put(PODS, waits("w", status="True"))
    assert [p["name"] for p in shown.ask()["waiting"]["items"]] == ["v"]
    shown.remove(PODS, waits("v"))
    assert shown.ask()["waiting"] == {"items": [], "more": {}, "reasons": []}


def test_free_memory_is_counted_by_profile_with_the_cause_where_none_fits() -> None:
    shown = Shown()
    full = (instance("4g.20gb", 0), *(instance("1g.5gb", start) for start in (4, 5, 6)))
    shown.put(
        MIG_NODES,
        mignode(
            "node-a",
            gpu(0, instances=full),
            gpu(1, instances=(instance("1g.5gb", 0), instance("1g.5gb", 4))),
            gpu(2, unavailable="it is lost", reason="GpuLost"),
            gpu(3, mig=False),
        ),
    )
    (node,) = shown.ask()["nodes"]
    rooms = {name: row for name, *row in node["rooms"]}
    assert (node["free"], node["memory"]) == (5120 + 6 * 5120 + 40960, 4 * 40960)
    assert [g["lack"] for g in node["gpus"]] == ["none of 7 compute slices left", "", "", ""]
    assert [bool(g["fault"]) for g in node["gpus"]] == [False, False, True, False]
    found = {name: (free, gpus, most) for name, (_, free, gpus, most, _) in rooms.items()}
    assert found["1g.5gb"] == (5, 1, 21)
    assert (found["3g.20gb"], found["7g.40gb"]) == ((0, 0, 6), (0, 0, 3))
    assert rooms["3g.20gb"][4] == {"place": 1}
    assert rooms["1g.5gb"][4] == {"compute slices": 1}
    assert found["whole GPU"] == (1, 1, 1)
    assert max(rooms, key=lambda name: rooms[name][0]) == "whole GPU"


def test_a_mignode_that_cannot_be_read_says_so() -> None:
    shown = Shown()
    shown.put(MIG_NODES, {"metadata": {"name": "node-a"}, "spec": {}, "status": {"gpus": 1}})
    (node,) = shown.ask()["nodes"]
    assert node["note"].startswith("its MigNode cannot be read: ")
