"""Exceptions about one object: they end nothing, and delay nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from api.mignode import MOST_GEOMETRIES
from controller import times
from controller.leader.mirrors import Inbox, mignode_of
from dra.claims.classes import GPU_CLASS, MOST_OF_NODE
from dra.common.resources import (
    DEVICE_CLASSES,
    EVENTS,
    MIG_NODES,
    NODES,
    RESOURCE_CLAIM_TEMPLATES,
    Obj,
    Resource,
)
from dra.gpu.geometry import Geometry
from dra.gpu.inventory import Gpu
from dra.kube.reflector import Change
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.fakeapi import FakeApi
from tests.controller.helpers.limit_templates import made, namespace
from tests.controller.helpers.objects import claim, gpu, mignode, node, request
from tests.controller.helpers.site import Site
from tests.controller.world.worldchecks import set_quotas
from tests.dra.cel.hostile import TOO_MUCH
from tests.dra.gpus import profile
from tests.helpers.waiting import wait_for


class FaultyApi(FakeApi):
    """Raises ``error`` at the apply of objects with certain names; ``asked`` counts these."""

    def __init__(self, *names: str, error: Exception) -> None:
        super().__init__()
        self.names = names
        self.error = error
        self.asked = 0

    def apply(self, resource: Resource, body: Obj, **more: Any) -> Obj:
        if body["metadata"]["name"] in self.names:
            self.asked += 1
            raise self.error
        return super().apply(resource, body, **more)


@pytest.mark.parametrize(
    "name", ["mig-1g.5gb", "nvidia.com-mig-1g.5gb", "node-a"], ids=["class", "template", "node"]
)
@pytest.mark.parametrize("error", [OverflowError("1 << 2**63"), RecursionError()], ids=repr)
def test_whatever_a_write_of_a_keeper_raises_pods_are_served(name: str, error: Exception) -> None:
    api = FaultyApi(name, error=error)
    bench = Bench(api=api, node_labels=True)
    bench.cluster.set_namespace(namespace())
    for each in ("node-a", "node-b"):
        bench.add_node(each)
    bench.claim(claim("c", request("r", GPU_CLASS if name == "mig-1g.5gb" else "mig-1g.10gb")))
    bench.serve("p", "d", request("r", "mig-2g.10gb"))
    assert api.asked
    assert bench.devices("d")
    assert {"mig-2g.10gb", "mig-7g.40gb"} <= bench.classes()
    bench.run(seconds=120)
    assert "nvidia.com-mig-2g.10gb" in made(bench)
    assert ("nodes", "node-b") in api.objects


def test_what_a_change_makes_somebody_raise_keeps_no_other_change_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench("node-a")
    bench.ask("p", "c")
    bench.cluster.set_mignode(mignode("node-b"))

    def fails(self: object, effects: object) -> None:
        raise OverflowError("no profile has such a name")

    monkeypatch.setattr("controller.keep.templates.LimitTemplates.note", fails)
    bench.run()
    assert bench.devices("c")


def _invented(*names: str, minor: int = 0) -> Gpu:
    found = [
        profile(name, number, slices=1, memory=4864, starts=[0], size=1)
        for number, name in enumerate(names)
    ]
    return gpu(minor, geometry=Geometry(tuple(found)))


MOST_CLASSES = 64 + 16


def _numbered(*numbers: int) -> list[str]:
    return [f"{number}g.{number}gb" for number in numbers]


def test_a_node_with_many_profiles_gets_few_classes_and_takes_none_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dra.claims.classes.MOST_PROFILES", 64)
    monkeypatch.setattr("controller.keep.classes.MOST_CLASSES", MOST_CLASSES)
    bench = Bench(node_labels=True)
    names = _numbered(*range(1, 61))
    bench.cluster.set_node(node("evil"))
    bench.cluster.set_mignode(mignode("evil", _invented(*names)))
    bench.run()
    labels = bench.api.get(NODES, "evil")["metadata"]["labels"]
    assert sum(key.endswith(".count") for key in labels) <= MOST_OF_NODE + 1
    assert sum(name[4].isdigit() for name in bench.classes()) == MOST_OF_NODE
    for number in range(3):
        others = _numbered(*range(1000 + 50 * number, 1050 + 50 * number))
        bench.cluster.set_mignode(mignode(f"evil-{number}", _invented(*others)))
    bench.run()
    assert len(bench.classes()) <= MOST_CLASSES
    for each in ("node-a", "node-b"):
        bench.add_node(each)
    bench.run(seconds=times.UNUSED_WHERE_FULL)
    bench.run(seconds=times.UNUSED_WHERE_FULL)
    assert {"mig-1g.5gb", "mig-7g.40gb"} <= bench.classes()
    assert len(bench.classes()) <= MOST_CLASSES


def test_a_class_that_nothing_names_and_without_a_quota_goes_a_day_after_its_profile() -> None:
    bench = Bench("node-a")
    known = {n for n in bench.classes() if n.startswith(("mig-1g", "mig-2g", "mig-3g"))}
    bench.claim(claim("c", request("r", "mig-1g.5gb")))
    template = {"spec": {"spec": {"devices": {"requests": [request("r", "mig-2g.10gb")]}}}}
    bench.api.put(RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": "t"}, **template})
    set_quotas(bench, {"mig-3g.20gb": {"devices": 2}})
    bench.cluster.remove_mignode("node-a")
    bench.run(seconds=1)
    bench.run(seconds=times.UNUSED_CLASS - 2)
    assert known <= bench.classes()
    bench.run(seconds=times.UNUSED_LOOK + 2)
    assert known & bench.classes() == {"mig-1g.5gb", "mig-2g.10gb", "mig-3g.20gb"}
    assert {"mig.dra.dev", GPU_CLASS} <= bench.classes()
    bench.cluster.set_mignode(mignode("node-a"))
    bench.run()
    assert known <= bench.classes()


def test_a_class_that_somebody_else_made_is_never_removed() -> None:
    bench = Bench("node-a")
    theirs = {"metadata": {"name": "mig-9g.99gb", "uid": "u"}, "spec": {}}
    bench.cluster.set_class(bench.api.put(DEVICE_CLASSES, theirs))
    bench.cluster.remove_mignode("node-a")
    bench.run(seconds=1)
    bench.run(seconds=times.UNUSED_CLASS + times.UNUSED_LOOK)
    assert "mig-9g.99gb" in bench.classes()
    assert NODES.plural not in bench.api.writes


def _said(**gpu_fields: Any) -> Obj:
    """The MigNode of node ``evil`` in which its GPU says something else than it would."""
    body = mignode("evil")
    body["status"]["gpus"][0].update(gpu_fields)
    return body


_PLACED = {"placement": {"start": 0, "size": 2**63 - 1}, "state": "foreign"}


def _geometry(profiles: int, starts: int, *, size: int = 1) -> list[Obj]:
    each = {"computeSlices": 0, "memorySlices": size, "memoryMiB": 1, "multiprocessors": 1}
    return [
        {"name": f"{n + 1}g.{n + 1}gb", "id": n, "starts": [*range(starts)], **each}
        for n in range(profiles)
    ]


@pytest.mark.parametrize(
    "said",
    [
        {"instances": [_PLACED]},
        {"instances": [{"placement": {"start": 2**63 - 1, "size": 1}, "state": "prepared"}]},
        {"instances": [{"placement": {"start": 40, "size": 40}, "state": "lost"}]},
        {"layout": {"name": "l", "ready": [_PLACED["placement"]]}},
        {"idle": [{"placement": _PLACED["placement"], "namespace": "n"}]},
        {"sharing": {"shares": 2**63 - 1}},
        {"name": "gpu-99999999"},
        {"memoryMiB": 2**63 - 1},
    ],
    ids=lambda said: next(iter(said)),
)
def test_a_node_that_says_what_cannot_be_is_left_out_and_nobody_else_notices(said: Obj) -> None:
    bench = Bench("node-a")
    bench.cluster.set_node(node("evil"))
    bench.cluster.apply(MIG_NODES, Change("added", None, mignode("evil")))
    bench.run()
    bench.cluster.apply(MIG_NODES, Change("modified", None, _said(**said)))
    bench.run()
    assert bench.recorder.reasons("evil") == ["MigNodeUnreadable"]
    for number in range(2):
        bench.ask(f"p{number}", f"c{number}", request("r", "mig-7g.40gb"))
    bench.run()
    assert bench.devices("c0")
    assert bench.node_of("c0") == "node-a"
    assert not bench.devices("c1")
    bench.cluster.apply(MIG_NODES, Change("modified", None, mignode("evil")))
    bench.run()
    assert bench.node_of("c1") == "evil"


@pytest.mark.parametrize(
    ("profiles", "told"),
    [
        (_geometry(1, 32), ["MigNodeUnreadable"]),
        (_geometry(2, 16), ["MigNodeUnreadable"]),
        (_geometry(64, 1), []),
        (_geometry(12, 5), []),
        (_geometry(64, 32), ["MigNodeUnreadable"]),
    ],
    ids=["bits", "pairs", "wide", "engines", "all"],
)
def test_a_geometry_that_no_gpu_has_delays_nobody(profiles: list[Obj], told: list[str]) -> None:
    bench = Bench("node-a")
    body = mignode("evil")
    each = body["status"]["gpus"][0]
    for number, profile_field in enumerate(profiles):
        profile_field["copyEngines"] = number
    names = [f"g{number}" for number in range(MOST_GEOMETRIES)]
    body["status"]["geometries"] = [{"name": name, "profiles": profiles} for name in names]
    body["status"]["gpus"] = [
        {**each, "geometry": name, "name": f"gpu-{n}"} for n, name in enumerate(names)
    ]
    bench.cluster.apply(MIG_NODES, Change("added", None, body))
    bench.serve("p", "c")
    assert bench.node_of("c") == "node-a"
    assert bench.recorder.reasons("evil") == told


def test_a_mignode_that_takes_long_has_a_share_of_the_time_whatever_it_does() -> None:
    clock = [1000.0]
    inbox = Inbox(lambda: clock[0])
    taken: list[str] = []
    busy = 0.0
    for number in range(10_000):
        clock[0] += 0.01
        body = {"metadata": {"name": "evil", "resourceVersion": str(number)}}
        inbox.put(MIG_NODES, Change("modified", None, body))
        inbox.put(MIG_NODES, Change("modified", None, {"metadata": {"name": "good"}}))
        for resource, change in inbox.take():
            name = mignode_of(resource, change)
            taken.append(name)
            if name == "evil":
                clock[0] += 0.1
                busy += 0.1
                inbox.charge(name, 0.1)
    assert taken.count("good") == 10_000
    assert busy < 0.7 + 0.05 * (clock[0] - 1000)
    clock[0] += 60
    ((_, held),) = inbox.take()
    assert held is not None
    assert held.new is not None
    assert held.new["metadata"]["resourceVersion"] == "9999"


def test_a_held_mignode_ends_the_wait_when_its_pause_is_over() -> None:
    inbox = Inbox()
    inbox.charge("evil", 0.51)
    inbox.put(MIG_NODES, Change("modified", None, {"metadata": {"name": "evil"}}))
    assert inbox.take() == []
    while not (found := inbox.take(None)):
        pass
    assert [mignode_of(*each) for each in found] == ["evil"]


# -- a controller as a process, and tenants who want to stop it


BAD = [text for text in TOO_MUCH.values() if "lists." not in text and "flatten" not in text]
"""Without functions that the embedded server does not know."""


def peak(pid: int) -> int:
    """The most memory that a process ever had, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM")]
    return int(line.split()[1]) // 1024


def test_selectors_that_want_all_memory_or_time_do_not_stop_the_controller(site: Site) -> None:
    site.add_node("node-a")
    controller = site.start("--no-leader-elect")
    site.wait_classes()
    site.claim("first")
    site.pod("first", "first")
    wait_for("allocation", lambda: site.allocation("first"))
    before = peak(controller.pid)
    names = [f"bad-{number}" for number in range(len(BAD))]
    for name, text in zip(names, BAD, strict=True):
        site.claim(name, request("r", "mig-1g.5gb", selectors=[{"cel": {"expression": text}}]))
        site.pod(name, name)
    site.claim("good", request("r", "mig-1g.5gb"))
    site.pod("good", "good")
    wait_for("allocation", lambda: site.allocation("good"))

    def told() -> set[str]:
        events = site.api.list(EVENTS, namespace="default").items
        return {e["involvedObject"]["name"] for e in events if e["reason"] == "SelectorTooCostly"}

    wait_for("events", lambda: told() >= {*names})
    assert controller.poll() is None
    assert peak(controller.pid) < before + 32
    assert not any(site.allocation(name) for name in names)
