"""Steering: kube-scheduler allocates, the controller chooses the node, one pod at a time there."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from controller.serve import steering
from dra.gangs.membership import COUNT_LABEL, NAME_LABEL
from dra.gpu.inventory import AllocatorKind
from dra.kube.errors import ConflictError, KubeError, UnavailableError
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.firstfit import FirstFit
from tests.controller.helpers.objects import (
    FINALIZER,
    allocated,
    claim,
    copied,
    gpu,
    inventory,
    mignode,
    node,
    pod,
    request,
)
from tests.dra.gpus import A100

GATED: dict[str, Any] = {"schedulingGates": [{"name": FINALIZER}]}
PROFILES = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")


class Site:
    """Nodes that kube-scheduler allocates, all of a cluster unless ``own`` names others."""

    def __init__(self, *names: str, gpus: int = 1, own: tuple[str, ...] = (), **more: Any) -> None:
        self.bench = Bench(*own, **more)
        here = [inventory(n, *(gpu(i, n) for i in range(gpus))) for n in names]
        self.scheduler = FirstFit(self.bench.api, here)
        self.names, self.gpus = names, gpus
        self.be_seen_by(self.bench)
        self.bench.run()

    def be_seen_by(self, bench: Bench) -> None:
        for name in self.names:
            bench.cluster.set_node(node(name))
            gpus = [gpu(i, name) for i in range(self.gpus)]
            bench.cluster.set_mignode(mignode(name, *gpus, allocator=AllocatorKind.SCHEDULER))

    def ask(self, name: str, *profiles: str, **spec: Any) -> None:
        names = [f"{name}-{n}" for n, _ in enumerate(profiles)]
        for each, profile in zip(names, profiles, strict=True):
            made = claim(each, request("r", f"mig-{profile}"))
            made["metadata"]["namespace"] = spec.get("namespace", "default")
            self.bench.claim(made)
        more = {"labels": spec.pop("labels", {}), "namespace": spec.pop("namespace", "default")}
        made = pod(name, *names, cpu="10m", **{**GATED, **spec})
        self.bench.pod({**made, "metadata": {**made["metadata"], **more}})

    def sent(self) -> dict[str, str]:
        """By name the pods whose gate is lifted and that have no node, with their nomination."""
        found = {n: o for (kind, n), o in self.bench.api.objects.items() if kind == "pods"}
        return {
            n: o.get("status", {}).get("nominatedNodeName", "")
            for n, o in found.items()
            if not o["spec"].get("schedulingGates") and not o["spec"].get("nodeName")
        }

    def watch(self) -> None:
        """The controller sees all pods as they are, and does what is due."""
        for (kind, _), obj in [*self.bench.api.objects.items()]:
            if kind == "pods":
                self.bench.cluster.set_pod(copied(obj))
        self.bench.run(seconds=0.06)

    def schedule(self, name: str, *, full: tuple[str, ...] = ()) -> str:
        """kube-scheduler tries a pod; returns its node, empty if it is refused.

        It nominates another node before it allocates there, if the nominated one does not do.
        """
        found, claims = self.scheduler.schedule(name, full=full)
        spec = {k: v for k, v in found["spec"].items() if k != "nodeName"}
        self.bench.pod({**found, "spec": spec})
        self.bench.run()
        for each in claims:
            self.bench.claim(each)
        self.bench.pod(found)
        self.bench.run(seconds=0.06)
        return str(found["spec"].get("nodeName", ""))

    def run(self) -> Counter[str]:
        """All is served as far as there is room; how many pods went where they were to."""
        outcomes: Counter[str] = Counter()
        self.watch()
        while sent := {n: where for n, where in self.sent().items() if where}:
            for name, where in sent.items():
                found = self.schedule(name)
                outcomes[
                    "nominated" if found == where else "elsewhere" if found else "refused"
                ] += 1
            self.watch()
        return outcomes


def test_every_pod_gets_the_device_that_was_foreseen_until_all_room_is_used() -> None:
    site, draw = Site("a", "b", "c", gpus=3), random.Random(7)
    asked = {f"p{number:02}": draw.choice(PROFILES) for number in range(90)}
    for name, profile in asked.items():
        site.ask(name, profile)
    outcomes = site.run()
    assert set(outcomes) == {"nominated"}
    pods = {n: o for (kind, n), o in site.bench.api.objects.items() if kind == "pods"}
    waiting = {asked[n] for n, o in pods.items() if o["spec"].get("schedulingGates")}
    free = [s for n in site.bench.cluster.fleet.nodes.values() for s in n.gpus]
    could = {p for s in free for p, places in A100.placeable(s.usage).items() if places}
    assert waiting
    assert not waiting & could
    assert not site.sent()
    assert "resourceclaims/status" not in site.bench.api.writes, "kube-scheduler alone allocates"


def test_a_refused_pod_is_left_to_kube_scheduler_and_others_go_on() -> None:
    site = Site("a", "b")
    site.ask("p", "3g.20gb")
    site.watch()
    where = site.sent()["p"]
    assert site.schedule("p", full=("a", "b")) == ""
    assert not site.bench.cluster.fleet.counts("uid-p-0"), "nothing counts for it any more"
    site.ask("q", "7g.40gb", nodeSelector={})
    site.watch()
    assert site.sent()["p"] == ""
    assert site.sent()["q"] == where, "its node is free for others"
    assert site.schedule("p") == "a", "kube-scheduler tries it again by itself"
    assert site.schedule("q") == "b"


@pytest.mark.parametrize("how", ["lose_claim", "delete_claim"])
def test_a_pod_whose_claim_is_deleted_on_its_way_keeps_no_other_from_its_node(how: str) -> None:
    """kube-scheduler does not look at it, and leaves its nomination."""
    site = Site("a")
    site.ask("p", "3g.20gb")
    site.watch()
    assert site.sent() == {"p": "a"}
    site.watch()
    getattr(site.bench, how)("p-0")
    site.ask("q", "7g.40gb")
    site.bench.run(seconds=61)
    assert site.sent() == {"p": "a", "q": "a"}
    assert site.schedule("q") == "a"


def test_few_refused_pods_keep_others_of_their_namespace_from_being_sent_and_nobody_else() -> None:
    names = tuple(f"n{n:02}" for n in range(steering.MOST))
    site = Site(*names)
    for number in range(steering.MOST_REFUSED_OF_ONE + 20):
        site.ask(f"bad{number:02}", "1g.5gb")
    for _ in range(10):
        site.watch()
        for name in [n for n, where in site.sent().items() if where]:
            site.schedule(name, full=names)
    refused = len(site.sent())
    assert refused == steering.MOST_REFUSED_OF_ONE
    site.ask("late", "1g.5gb", priority=10)
    site.bench.run(seconds=61)
    assert "late" not in site.sent()
    assert "WaitingForScheduler" in site.bench.recorder.reasons("late")
    site.ask("other", "1g.5gb", namespace="elsewhere")
    site.bench.run()
    assert site.sent()["other"]
    for name in [n for n in site.sent() if n.startswith("bad")][:refused]:
        site.bench.delete_pod(name)
    site.bench.run(seconds=0.06)
    assert "late" in site.sent(), "when they are gone it goes on"


def test_a_node_that_refuses_what_it_is_sent_is_tried_last() -> None:
    site = Site("a", "b", "c")
    site.ask("p", "1g.5gb")
    site.watch()
    assert site.sent() == {"p": "a"}
    assert site.schedule("p", full=("a",)) == "b"
    for name, where in (("q", "c"), ("r", "a")):
        site.ask(name, "7g.40gb")
        site.watch()
        assert site.schedule(name) == where, "a, rather than nowhere"


def test_the_next_leader_knows_who_is_on_the_way_and_who_was_refused() -> None:
    site = Site("a", "b")
    site.ask("p", "1g.5gb")
    site.ask("q", "1g.5gb")
    site.watch()
    on_its_way, refused = site.sent()
    where = site.sent()[on_its_way]
    site.schedule(refused, full=("a", "b"))
    new = site.bench.succeeded_by()
    site.be_seen_by(new)
    site.bench = new
    site.ask("r", "1g.5gb")
    site.ask("s", "1g.5gb")
    site.watch()
    (name,) = site.sent().keys() - {on_its_way, refused}
    assert site.sent()[name] != where
    assert {
        r.pod.key[1]: r.steered and r.steered.is_refused for r in new.world.steered.values()
    } == {on_its_way: False, refused: True, name: False}
    assert site.schedule(on_its_way) == where
    assert len(site.sent()) == 3


@pytest.mark.parametrize(
    "error", [UnavailableError("no answer"), ConflictError("changed", status=409)]
)
@pytest.mark.parametrize("what", ["pods", "pods/status"])
def test_a_send_that_may_succeed_is_repeated_for_the_same_node(what: str, error: KubeError) -> None:
    site, errors = Site("a", "b"), [error]
    way = "lost" if isinstance(error, UnavailableError) else "refuse"
    setattr(site.bench.api, way, lambda w: errors.pop() if errors and w == what else None)
    site.ask("p", "1g.5gb")
    site.bench.run()
    assert site.bench.cluster.fleet.counts("uid-p-0")
    site.watch()
    site.bench.run(seconds=30)
    assert site.sent() == {"p": "a"}
    assert site.run() == {"nominated": 1}
    assert not site.bench.world.steered


def test_a_gang_is_sent_together_once_all_of_it_has_room() -> None:
    site = Site("a", "b")
    gang = {NAME_LABEL: "g", COUNT_LABEL: "3"}
    for name in ("x", "y", "z"):
        site.ask(name, "4g.20gb", labels=gang)
    site.watch()
    assert not site.sent()
    site.ask("small", "1g.5gb")
    assert site.run() == {"nominated": 1}
    more = Site("a", "b", "c")
    for name in ("x", "y", "z"):
        more.ask(name, "4g.20gb", labels=gang)
    more.watch()
    assert sorted(more.sent().values()) == ["a", "b", "c"]
    assert more.run() == {"nominated": 3}


def test_a_few_pods_without_room_are_sent_where_an_autoscaler_has_to_see_them() -> None:
    site = Site("a", autoscaler=True)
    site.ask("large", "7g.40gb")
    assert site.run() == {"nominated": 1}
    for number in range(steering.MOST_REFUSED_OF_ONE + 8):
        site.ask(f"p{number:02}", "1g.5gb")
    site.watch()
    sent = [*site.sent()]
    assert sent == [f"p{n:02}" for n in range(steering.MOST_REFUSED_OF_ONE)]
    assert {*site.sent().values()} == {""}
    more = inventory("b", gpu(0, "b"))
    site.names = ("a", "b")
    site.scheduler.lists |= FirstFit(site.bench.api, [more]).lists
    site.be_seen_by(site.bench)
    for name in sent:
        site.schedule(name)
    site.run()
    pods = [o["spec"] for (kind, _), o in site.bench.api.objects.items() if kind == "pods"]
    assert sum("nodeName" in spec for spec in pods) == 8, "as many as there is room for"
    assert len(site.sent()) == steering.MOST_REFUSED_OF_ONE, "others have their turn"


def test_what_kube_scheduler_allocated_is_never_given_back_by_us() -> None:
    site = Site("theirs", own=("ours",), finalizer_at_creation=True)
    site.ask("p", "7g.40gb", nodeSelector={"only": "theirs"})
    site.bench.cluster.set_node(node("theirs", labels={"only": "theirs"}))
    site.watch()
    _, claims = site.scheduler.schedule("p")
    for each in claims:
        each["metadata"]["finalizers"] = [FINALIZER, *each["metadata"]["finalizers"]]
        site.bench.claim(each)
    for _ in range(20):
        site.bench.run(seconds=60)
    assert site.bench.devices("p-0"), "unbound for twenty minutes"


@pytest.mark.parametrize(
    ("device_class", "device"),
    [("gpu-share.dra.dev", "gpu-0"), ("mig-share.dra.dev", "gpu-0-mig-1g5gb-19-6-share")],
)
def test_a_share_of_another_namespaces_device_is_no_room(device_class: str, device: str) -> None:
    """kube-scheduler takes the first with room, whoever has it, and the node refuses that."""
    is_slice, shares = "mig" in device, 2
    offer: dict[str, Any] = {"slice_shares": shares}
    if not is_slice:
        offer = {"mig": False, "shares": shares}
    site = Site("a")
    bench, gpus = site.bench, [gpu(minor, "a", **offer) for minor in range(2)]
    bench.cluster.set_mignode(mignode("a", *gpus, allocator=AllocatorKind.SCHEDULER))
    for name, namespace in (("first", "default"), ("own", "default"), ("other", "elsewhere")):
        made = claim(name, request("r", device_class))
        made["metadata"]["namespace"] = namespace
        bench.claim(allocated(made, "a", device) if name == "first" else made)
        asking = pod(name, name, **({} if name == "first" else GATED))
        bench.pod({**asking, "metadata": {**asking["metadata"], "namespace": namespace}})
    site.watch()
    assert site.sent().keys() - {"first"} == {"own"}
    site.watch()
    assert "WaitingForSlice" in bench.recorder.reasons("other")
    bench.claim(allocated(claim("own", request("r", device_class)), "a", device))
    bench.run(seconds=61)
    assert site.sent()["other"] == "a", "what is given wholly is passed over"
