"""Room for a pod by moving or ending others: one plan at a time, and never more than it needs."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from api.mignode import RoomRequest
from controller import times
from dra.allocator.movers import is_possible
from dra.allocator.planner import find_plan
from dra.common.resources import PODS, RESOURCE_CLAIMS, Obj
from dra.kube.errors import ForbiddenError, KubeError, UnavailableError
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import (
    DRIVER,
    allocated,
    claim,
    copied,
    gpu,
    instance,
    mignode,
    node,
    pod,
    request,
    with_gpus,
)
from tests.dra.gpus import A100

NODES = ("node-a", "node-b", "node-c")
BUDGET = UnavailableError(
    "Cannot evict pod as it would violate the pod's disruption budget.",
    status=429,
    details={"causes": [{"reason": "DisruptionBudget"}]},
)


class Room:
    """A bench with owners of pods, kubelets, and an administrator.

    ``replaces``: what is evicted comes back as another pod. ``ends``: it ends once it is told to.
    """

    def __init__(self, *nodes: str, bench: Bench | None = None, **options: Any) -> None:
        self.bench = bench or Bench(**options)
        self.replaces = self.ends = True
        self.numbers = itertools.count(2)
        self.seen: list[str] = []
        """Names of pods that were told to end, in their order."""
        self.requests = itertools.count(1)
        for name in nodes:
            self.bench.cluster.set_node(node(name, labels={f"{DRIVER}/defrag": "true"}))
            self.bench.cluster.set_mignode(mignode(name))

    def runs(self, name: str, profile: str, where: str, start: int = 0, **more: Any) -> None:
        """A pod of a ReplicaSet runs with a slice."""
        known = A100.by_name(profile)
        assert known is not None
        label = profile.replace(".", "")
        device = f"gpu-0-mig-{label}-{known.id}-{start}"
        self.bench.claim(allocated(claim(name, request("r", f"mig-{profile}")), where, device))
        self.create(name, nodeName=where, **more)

    def create(self, name: str, *, movable: bool = True, owner: str = "", **spec: Any) -> None:
        body = pod(name, name, **spec)
        if movable:
            body["metadata"]["labels"] = {f"{DRIVER}/movable": "true"}
        owner = owner or f"owner-of-{name}"
        reference = {"kind": "ReplicaSet", "name": owner, "uid": owner, "controller": True}
        body["metadata"]["ownerReferences"] = [reference]
        status = "Running" if spec.get("nodeName") else "Pending"
        self.bench.pod({**body, "status": {"phase": status}})

    def asks(self, name: str, profile: str, **more: Any) -> None:
        self.bench.claim(claim(name, request("r", f"mig-{profile}")))
        self.create(name, **{"movable": False, **more})
        self.bench.run()

    def wish(self, name: str, on: str, *, moves: int = 9, id_: str = "", beat: int = 0) -> None:
        """An administrator asks for room on a node for a pod."""
        asked = RoomRequest(f"uid-{name}", id_ or f"id-{next(self.requests)}", moves, beat)
        known = self.bench.cluster.inventory(on)
        assert known is not None
        body = mignode(on, *known.gpus)
        body["metadata"]["annotations"] = {f"{DRIVER}/defrag": str(asked)}
        self.bench.cluster.set_mignode(body)

    def step(self, seconds: float = 2.0) -> None:
        """Some time passes, in which all do what is theirs."""
        self.bench.run(seconds=seconds)
        told = [body["metadata"]["name"] for body in self.bench.api.evicted]
        for name in told[len(self.seen) :]:
            self._told(name)
        self.seen[len(self.seen) :] = told[len(self.seen) :]
        for (kind, name), obj in [*self.bench.api.objects.items()]:
            if kind != PODS.plural:
                continue
            if self.ends and "deletionTimestamp" in obj["metadata"]:
                self.gone(name)
            elif not obj["spec"].get("nodeName") and self.bench.devices(name):
                self.bench.bind(name, self.bench.node_of(name))
        self.bench.run()

    def gone(self, name: str) -> None:
        self.bench.delete_pod(name)
        self.bench.lose_claim(name)

    def _told(self, name: str) -> None:
        obj = copied(self.bench.api.get(PODS, name))
        obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self.bench.pod(obj)
        if self.replaces:
            asked = self.bench.api.get(RESOURCE_CLAIMS, name)["spec"]["devices"]["requests"]
            again = f"{name.partition('.')[0]}.{next(self.numbers)}"
            self.bench.claim(claim(again, *asked))
            labels = obj["metadata"].get("labels", {})
            spec = {"priority": obj["spec"]["priority"]} if "priority" in obj["spec"] else {}
            [owner] = obj["metadata"]["ownerReferences"]
            movable = f"{DRIVER}/movable" in labels
            self.create(again, movable=movable, owner=owner["uid"], **spec)

    def wait(self, steps: int = 20) -> None:
        for _ in range(steps):
            self.step()

    def told(self, name: str, reason: str) -> list[str]:
        events = self.bench.recorder.events
        return [m for _, about, r, m in events if (about, r) == (name, reason)]

    def held(self) -> list[str]:
        """Places that are held back."""
        gpus = (s for n in self.bench.cluster.fleet.nodes.values() for s in n.gpus)
        return [h.claim_uid for s in gpus for h in s.holdings if h.claim_uid.startswith("next:")]


def crowded(**options: Any) -> Room:
    """Three nodes on which a slice is in the way of a whole GPU, of two sizes."""
    room = Room(*NODES, **options)
    room.runs("a", "2g.10gb", "node-a", 0)
    room.runs("b", "1g.5gb", "node-b", 0)
    room.runs("c", "3g.20gb", "node-c", 0)
    room.asks("big", "7g.40gb")
    return room


def test_pods_are_moved_one_after_the_other_each_once_the_one_before_is_served() -> None:
    room = crowded()
    room.runs("b2", "1g.5gb", "node-b", 1)
    room.runs("b3", "1g.5gb", "node-b", 5)
    room.wish("big", "node-b")
    seen = []
    for _ in range(20):
        room.step()
        running = {n for (k, n), o in room.bench.api.objects.items() if k == "pods"}
        seen.append(len([n for n in running if n.startswith("b") and n != "big"]))
    assert sorted(room.seen) == ["b", "b2", "b3"]
    assert set(seen) == {3}, "no pod is missing while others are moved"
    told = room.told("big", "MakingRoom")
    assert sum("is moved for it" in m for m in told) == 3
    assert sum("is served on node" in m for m in told) == 2
    assert room.bench.node_of("big") == "node-b"


def test_what_is_made_free_is_for_who_asked_and_nobody_else() -> None:
    room = crowded()
    room.runs("b2", "1g.5gb", "node-b", 1)
    room.ends = False
    room.wish("big", "node-b")
    room.wait(3)
    room.asks("other", "7g.40gb", priority=0)
    room.ends = True
    room.wait()
    assert room.bench.node_of("big") == "node-b"
    assert not room.bench.devices("other")


@pytest.mark.parametrize(
    "changed",
    [
        {"labels": {}},
        {"labels": {f"{DRIVER}/movable": "false"}},
        {"ownerReferences": []},
        {"ownerReferences": [{"kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}]},
    ],
    ids=["no label", "another value", "bare", "of a DaemonSet"],
)
def test_nobody_is_moved_who_did_not_let_it_or_does_not_come_back(changed: Obj) -> None:
    room = crowded()
    obj = copied(room.bench.api.get(PODS, "b"))
    obj["metadata"] |= changed
    room.bench.pod(obj)
    room.wish("big", "node-b")
    room.wait()
    assert room.seen == []
    assert "moves of pods that may be moved make no room" in room.told("big", "RoomNotMade")[-1]
    assert room.held() == []


@pytest.mark.parametrize(
    ("error", "said"),
    [(BUDGET, "disruption budget"), (ForbiddenError("no", status=403), "defrag.enabled")],
)
def test_a_refused_eviction_ends_it_and_what_was_held_back_is_free(
    error: KubeError, said: str
) -> None:
    room = crowded()
    room.bench.api.refuse = lambda what: error if what == "evict b" else None
    room.wish("big", "node-b", id_="once")
    room.wait()
    assert room.seen == []
    assert said in room.told("big", "RoomNotMade")[-1]
    assert room.held() == []
    room.bench.api.refuse = lambda _: None
    room.wish("big", "node-b", id_="once", beat=1)
    room.wait()
    assert room.seen == [], "a request is over with the first surprise"
    room.wish("big", "node-b", id_="again")
    room.wait()
    assert room.seen == ["b"]


def test_one_pod_is_moved_at_a_time_whoever_asks() -> None:
    room = crowded()
    room.asks("also", "7g.40gb")
    room.ends = False
    room.wish("big", "node-b")
    room.wish("also", "node-a")
    room.wait(10)
    assert len(room.seen) == 1
    room.ends = True
    room.wish("big", "node-b", id_="id-1", beat=1)
    room.wish("also", "node-a", id_="id-2", beat=1)
    room.wait(10)
    assert room.bench.devices("big") or room.bench.devices("also")


def test_it_ends_where_the_next_pod_may_not_be_moved_any_more() -> None:
    room = crowded()
    room.runs("b2", "1g.5gb", "node-b", 1)
    room.wish("big", "node-b")
    room.step()
    (first,) = room.seen
    left = "b2" if first == "b" else "b"
    obj = copied(room.bench.api.get(PODS, left))
    obj["metadata"]["labels"] = {}
    room.bench.pod(obj)
    room.wait()
    assert room.seen == [first]
    assert "may not any more" in room.told("big", "RoomNotMade")[-1]
    assert room.held() == []


def test_it_ends_where_more_have_to_move_than_were_left() -> None:
    room = crowded()
    room.runs("b2", "1g.5gb", "node-b", 1)
    room.wish("big", "node-b")
    room.step()
    room.runs("b3", "1g.5gb", "node-b", 5)
    room.wait()
    assert len(room.seen) == 1
    assert "2 pods would have to leave now, and 1" in room.told("big", "RoomNotMade")[-1]
    assert room.held() == []


@pytest.mark.parametrize("lasts", [False, True], ids=["replaced too late", "does not end"])
def test_it_ends_where_the_moved_pod_is_not_replaced_or_does_not_end(*, lasts: bool) -> None:
    room = crowded()
    room.runs("b2", "1g.5gb", "node-b", 1)
    room.replaces, room.ends = False, not lasts
    room.wish("big", "node-b")
    for beat in range(int((times.ROOM_MADE + times.ROOM_REPLACED) / 10)):
        room.wish("big", "node-b", id_="x", beat=beat)
        room.step(10.0)
    assert len(room.seen) == 1
    said = "taken more than" if lasts else "no pod was served"
    assert said in room.told("big", "RoomNotMade")[-1]
    assert room.held() == []


def test_whoever_may_write_pods_and_claims_cannot_have_others_moved() -> None:
    room = crowded()
    obj = copied(room.bench.api.get(PODS, "big"))
    asked = RoomRequest("uid-big", "forged", 9)
    obj["metadata"] |= {
        "annotations": {f"{DRIVER}/defrag": str(asked)},
        "labels": {f"{DRIVER}/defrag": "true", f"{DRIVER}/movable": "true"},
    }
    room.bench.pod(obj)
    room.wait(int(times.HOUR / 2))
    assert room.seen == []


# -- by itself


def test_by_itself_it_moves_where_nodes_opted_in_after_a_while() -> None:
    room = crowded(moves_per_hour=4)
    room.wait(int(times.HOUR / 4 / 2) - 5)
    assert room.seen == []
    room.wait(10 + int(times.ROOM_WANTED))
    assert room.seen == ["b"]
    assert room.bench.node_of("big") == "node-b"


@pytest.mark.parametrize("how", ["another product", "no CPU"])
def test_nobody_is_moved_who_could_not_run_elsewhere(how: str) -> None:
    room = crowded()
    for name in ("node-a", "node-c"):
        if how == "no CPU":
            room.bench.cluster.set_node(node(name, cpu="100m"))
        else:
            other = replace(gpu(0, name), product_name="NVIDIA A100-PCIE-40GB")
            room.bench.cluster.set_mignode(mignode(name, other))
    room.wish("big", "node-b")
    room.wait()
    assert room.seen == []


def test_a_plan_is_not_followed_once_others_took_what_it_supposes() -> None:
    cluster = with_gpus(gpu(0), gpu(1))
    found = find_plan(cluster.fleet, ["7g.40gb", "7g.40gb"], []).plan
    assert found is not None
    assert is_possible(found, cluster.fleet)
    taken = instance("1g.5gb", 3, uid="u")
    cluster.set_mignode(mignode("node-a", gpu(0, instances=(taken,)), gpu(1)))
    assert not is_possible(found, cluster.fleet)


def test_by_itself_it_moves_nobody_on_other_nodes() -> None:
    room = crowded(moves_per_hour=60)
    for name in NODES:
        room.bench.cluster.set_node(node(name))
    room.wait(int(times.HOUR / 2))
    assert room.seen == []


@pytest.mark.parametrize("leaders", [1, 4])
def test_two_who_take_turns_move_no_more_than_so_many_an_hour(leaders: int) -> None:
    """A moved pod that asks for room itself is no way to more moves, not by new leaders either."""
    rate, hours = 4, 3
    room = Room("node-a", "node-b", moves_per_hour=rate)
    room.runs("a", "1g.5gb", "node-a", 0)
    room.runs("b", "1g.5gb", "node-b", 0)
    seen = 0
    for leader in range(leaders):
        if leader:
            new = room.bench.succeeded_by()
            new.world.options = replace(new.world.options, moves_per_hour=rate)
            new.world.rooms.slots = [new.now() + times.HOUR * (n + 1) / rate for n in range(rate)]
            seen += len(room.seen)
            room = Room("node-a", "node-b", bench=new)
            room.seen = [b["metadata"]["name"] for b in new.api.evicted]
            seen -= len(room.seen)
        for turn in range(int(hours * times.HOUR / 30 / leaders)):
            room.step(30.0)
            last = next((n for k, n in room.bench.api.objects if n.startswith("big")), "")
            if not last:
                room.asks(f"big-{leader}-{turn}", "7g.40gb")
            elif room.bench.devices(last):
                where = room.bench.node_of(last)
                room.gone(last)
                room.gone(next(n for k, n in room.bench.api.objects if k == "pods"))
                room.runs(f"new-{leader}-{turn}", "1g.5gb", where, 0)
    moved = seen + len(room.seen)
    assert 1 <= moved <= rate * hours + rate, moved


# -- priority


def full(**options: Any) -> Room:
    room = Room("node-a", preemption=True, **options)
    for start, priority in enumerate((5, 1, 3, 2, 4, 6, 7)):
        room.runs(f"p{priority}", "1g.5gb", "node-a", start, priority=priority, movable=False)
    room.replaces = False
    return room


def test_the_pod_of_the_lowest_priority_ends() -> None:
    room = full()
    room.asks("urgent", "1g.5gb", priority=100)
    room.wait()
    assert room.seen == ["p1"]
    assert room.bench.devices("urgent")
    assert room.told("urgent", "RoomNotMade") == []
    assert "pod default/urgent" in room.told("p1", "PodPreempted")[0]
    assert room.held() == []


@pytest.mark.parametrize(
    ("options", "spec"),
    [
        ({"preemption": False}, {"priority": 100}),
        ({}, {"priority": 100, "preemptionPolicy": "Never"}),
        ({}, {"priority": 1}),
    ],
    ids=["off", "never", "no higher"],
)
def test_nobody_ends_otherwise(options: dict[str, Any], spec: dict[str, Any]) -> None:
    room = Room("node-a", **{"preemption": True, **options})
    for start in range(7):
        room.runs(f"p{start}", "1g.5gb", "node-a", start, priority=1)
    room.asks("urgent", "1g.5gb", **spec)
    room.wait(100)
    assert room.seen == []


def test_nobody_of_equal_or_higher_priority_ends_although_lower_ones_would() -> None:
    room = full()
    room.asks("urgent", "4g.20gb", priority=4)
    room.wait(100)
    assert room.seen == []


def test_pods_that_budgets_protect_end_last_and_end_all_the_same() -> None:
    room = full()
    room.bench.api.refuse = lambda what: BUDGET if what == "evict p1" else None
    room.asks("urgent", "1g.5gb", priority=100)
    room.wait()
    assert room.seen == ["p2"], "another of low priority, which no budget protects"
    asked: list[str] = []

    def refuse(what: str) -> KubeError | None:
        said = room.bench.api.objects.get(("pods", "p1"), {}).get("status", {}).get("conditions")
        asked.append(f"{what} {said[0]['type'] if said else ''}")
        return BUDGET if what.startswith("evict") else None

    room.bench.api.refuse = refuse
    room.asks("next", "1g.5gb", priority=100)
    room.wait()
    assert room.seen == ["p2"]
    names = {n for k, n in room.bench.api.objects if k == "pods"}
    assert names == {"p3", "p4", "p5", "p6", "p7", "urgent", "next"}
    assert "delete pods DisruptionTarget" in asked


def test_a_leader_that_dies_in_between_leaves_nothing_half_done() -> None:
    room = full()
    room.ends = False
    room.asks("urgent", "1g.5gb", priority=100)
    room.step()
    assert room.seen == ["p1"]
    new = room.bench.succeeded_by()
    new.world.options = replace(new.world.options, preemption=True)
    successor = Room("node-a", bench=new)
    successor.seen = ["p1"]
    successor.ends = False
    successor.wait(5)
    assert successor.held() == ["next:uid-urgent"]
    successor.ends = True
    successor.wait(5)
    assert successor.seen == ["p1"]
    assert new.devices("urgent")
