"""Refusals of kube-scheduler teach for a template and for zones, and cost no endless trials."""

from __future__ import annotations

from collections.abc import Callable

from dra.common.resources import Obj
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import claim, node, pod

ZONE = "topology.kubernetes.io/zone"
STATUS = "resourceclaims/status"


class Site:
    """A bench, and a scheduler that takes pods only where ``suits`` says."""

    def __init__(self, suits: Callable[[str], bool], **zones: str) -> None:
        self.suits = suits
        self.bench = Bench()
        for name, zone in zones.items():
            labels = {ZONE: zone} if zone else {}
            self.bench.add_node(name, labels=labels)
        self.bench.run()
        self.bench.api.writes.clear()
        self.pods: dict[str, Obj] = {}

    def start(self, count: int, *, owner: str = "owner", name: str = "p") -> None:
        """Pods of one owner, each with a claim that is called like it."""
        for number in range(count):
            key = f"{name}{number}"
            self.bench.claim(claim(key))
            body = pod(key, key)
            owners = [{"kind": "ReplicaSet", "uid": owner, "controller": True}] if owner else []
            body["metadata"]["ownerReferences"] = owners
            self.pods[key] = self.bench.pod(body)
        self.bench.run()

    def schedule(self, *, seconds: float = 0.1) -> None:
        """One round of kube-scheduler: it binds, or takes back."""
        for name, body in self.pods.items():
            if not body["spec"].get("nodeName") and self.bench.devices(name):
                where = self.bench.node_of(name)
                if self.suits(where):
                    spec = {**body["spec"], "nodeName": where}
                    self.pods[name] = self.bench.pod({**body, "spec": spec})
                else:
                    self.bench.change_claim(name, allocation=None)
                self.bench.run()
        self.bench.run(seconds=seconds)

    @property
    def bound(self) -> int:
        return sum(bool(body["spec"].get("nodeName")) for body in self.pods.values())

    @property
    def allocations(self) -> int:
        return self.bench.api.writes.count(STATUS)

    def until_bound(self, *, rounds: int) -> None:
        for _ in range(rounds):
            if self.bound == len(self.pods):
                return
            self.schedule()
        raise AssertionError(f"{self.bound} of {len(self.pods)} bound")


def test_a_refusal_is_one_for_all_of_a_template_and_a_binding_shows_the_way() -> None:
    names = {f"n{i:02}": "" for i in range(30)}
    site = Site(lambda where: where == "n29", **names)
    site.start(1)
    site.until_bound(rounds=60)
    assert site.allocations == 30
    site.start(6, name="q")
    site.until_bound(rounds=60)
    assert site.allocations == 36, "the others go there at once"


def test_refused_nodes_that_change_all_the_time_are_tried_ever_more_rarely() -> None:
    site = Site(lambda _: False, a="", b="")
    site.start(1)
    for number in range(600):
        for name in ("a", "b"):
            site.bench.cluster.set_node(node(name, labels={"changing": str(number)}))
        site.schedule(seconds=1.0)
    assert 8 < site.allocations < 30


def test_after_long_a_refused_node_is_as_good_as_another() -> None:
    site = Site(lambda where: where == "b", a="", b="")
    site.start(1)
    site.until_bound(rounds=3)
    site.bench.run(seconds=1000.0)
    site.start(1, name="other", owner="x")
    site.bench.change_claim("other0", allocation=None)
    site.bench.run()
    site.start(1, name="late")
    assert site.bench.node_of("late0") == "a"
