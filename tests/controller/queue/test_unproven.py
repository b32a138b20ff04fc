"""Pods with a claim for another driver, of which only kube-scheduler knows where it is served."""

from __future__ import annotations

import pytest

from dra.claims.otherdevices import trim_slice
from dra.common.resources import Obj
from dra.kube.errors import InvalidError, KubeError
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.fakeapi import once
from tests.controller.helpers.objects import claim, device_class, pod, request

STATUS = "resourceclaims/status"
ZONE = "topology.kubernetes.io/zone"


class Site:
    """A bench, and a scheduler that knows which node has how many ``tapes``.

    A pod that it could not place it leaves alone for a second, then for longer, unless it has
    nothing else to do (``idle``; SchedulerPopFromBackoffQ). ``published``: the tapes are in
    ResourceSlices, of which each node has one.
    """

    def __init__(
        self,
        tapes: dict[str, int],
        zones: dict[str, str] | None = None,
        *,
        published: bool = False,
        idle: bool = False,
    ) -> None:
        self.tapes = dict(tapes)
        self._longest = 0.0 if idle else 10.0
        self.bench = Bench()
        self.bench.cluster.set_class(device_class("tapes", "device.driver == 'tape.example.com'"))
        for name, count in tapes.items():
            labels = {ZONE: zones[name]} if zones else {}
            self.bench.add_node(name, labels=labels)
            if published and count:
                self.publish(name, count)
        self.bench.run()
        self.bench.api.writes.clear()
        self.pods: dict[str, Obj] = {}
        self._pauses: dict[str, float] = {}
        self._later: dict[str, float] = {}
        self.refused: set[str] = set()

    def publish(self, node: str, count: int) -> None:
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        serial = [{"name": f"t{n}", "attributes": {"serial": {"int": n}}} for n in range(count)]
        spec = {"driver": "tape.example.com", "nodeName": node, "pool": pool, "devices": serial}
        self.bench.cluster.set_slice(trim_slice({"metadata": {"name": node}, "spec": spec}))

    def start(self, count: int, *, owner: str = "owner", name: str = "p") -> None:
        """Pods of one owner, each with a slice and a tape."""
        for number in range(count):
            key = f"{name}{number}"
            self.bench.claim(claim(key))
            self.bench.claim(claim(f"tape-{key}", request("r", "tapes")))
            body = pod(key, key, f"tape-{key}")
            owners = [{"kind": "ReplicaSet", "uid": owner, "controller": True}] if owner else []
            body["metadata"]["ownerReferences"] = owners
            self.pods[key] = self.bench.pod(body)
        self.bench.run()

    @property
    def unanswered(self) -> list[str]:
        """Pods that are allocated, of which kube-scheduler has said nothing."""
        bound = (name for name, body in self.pods.items() if body["spec"].get("nodeName"))
        left = self.pods.keys() - set(bound)
        return sorted(name for name in left if self.bench.devices(name))

    def answer(self, name: str) -> None:
        """It serves a pod, or takes the slice back."""
        where = self.bench.node_of(name)
        if self.bench.time < self._later.get(name, 0.0):
            return
        if self.tapes[where] == 0:
            self.refused.add(where)
            pause = self._pauses[name] = min(self._longest, 2 * self._pauses.get(name, 0.5))
            self._later[name] = self.bench.time + pause
            self.bench.change_claim(name, allocation=None)
            return
        self.tapes[where] -= 1
        result = {"request": "r", "driver": "tape.example.com", "pool": where}
        result["device"] = f"t{self.tapes[where]}"
        self.bench.change_claim(f"tape-{name}", allocation={"devices": {"results": [result]}})
        body = self.pods[name]
        self.pods[name] = self.bench.pod({**body, "spec": {**body["spec"], "nodeName": where}})

    def round(self, *, seconds: float = 0.1) -> None:
        """All that is allocated is answered, and only then the controller goes on."""
        for name in self.unanswered:
            self.answer(name)
        self.bench.run()
        self.bench.run(seconds=seconds)

    @property
    def bound(self) -> int:
        return sum(bool(body["spec"].get("nodeName")) for body in self.pods.values())

    @property
    def allocations(self) -> int:
        return self.bench.api.writes.count(STATUS)

    def said(self) -> list[tuple[str, str]]:
        events = self.bench.recorder.events
        return [(name, said) for _, name, why, said in events if why == "WaitingForOtherClaim"]


FAR = {f"far{n:02}": 0 for n in range(18)}
ZONES = {**dict.fromkeys(FAR, "far"), "near0": "near", "near1": "near", "near2": "near"}


@pytest.mark.parametrize(
    ("tapes", "pods", "most"),
    [
        pytest.param({**FAR, "near0": 7, "near1": 7, "near2": 7}, 20, 24, id="zone"),
        pytest.param({"near0": 7, "near1": 7, "near2": 7}, 20, 20, id="everywhere"),
        pytest.param({"near0": 0, "near1": 7, "near2": 7}, 12, 14, id="one without"),
        pytest.param({"near0": 5, "near1": 5, "near2": 5}, 15, 18, id="they run out"),
        pytest.param({**FAR, "near0": 5, "near1": 5, "near2": 5}, 14, 17, id="zone, few"),
    ],
)
def test_a_burst_costs_few_allocations(tapes: dict[str, int], pods: int, most: int) -> None:
    site = Site(tapes, {name: ZONES[name] for name in tapes})
    site.start(pods)
    began = site.bench.time
    while site.bound < pods:
        site.round()
        assert site.bench.time < began + 10, f"{site.bound} of {pods}"
    assert pods <= site.allocations <= most


def test_who_waits_for_a_device_of_others_is_served_when_one_is_free() -> None:
    site = Site({"near0": 1, "near1": 0}, published=True)
    site.start(2)
    site.round()
    assert (site.bound, site.allocations) == (1, 1)
    (waiting,) = (name for name in site.pods if not site.bench.devices(name))
    told = [said for _, name, _, said in site.bench.recorder.events if name == waiting]
    assert any("another driver has no free device there" in said for said in told)
    (bound,) = site.pods.keys() - {waiting}
    site.tapes["near0"] = 1
    site.bench.change_claim(f"tape-{bound}", allocation=None)
    site.bench.run()
    site.round()
    assert site.bench.node_of(waiting) == "near0"
    assert site.allocations == 2


@pytest.mark.parametrize("told", [True, False])
def test_what_they_learnt_is_forgotten_when_the_other_driver_offers_something_else(
    *, told: bool
) -> None:
    site = Site({"a": 0, "b": 0})
    site.start(3, owner="")
    began = site.bench.time
    while site.bench.time < began + 100:
        site.round(seconds=1.0)
    site.tapes["a"] = 7
    if told:
        site.publish("a", 7)
    while site.bound < 3 and site.bench.time < began + 150:
        site.round(seconds=1.0)
    assert site.bound == (3 if told else 0)


def test_one_goes_ahead_and_what_is_proven_lets_more_go_at_a_time() -> None:
    site = Site(dict.fromkeys(("a", "b", "c", "d"), 28))
    site.start(28)
    together = []
    while site.bound < 28:
        together.append(len(site.unanswered))
        site.round()
    assert together[:6] == [1, 1, 1, 1, 1, 2]
    assert max(together) == together[-2] == 5


def goes(site: Site) -> None:
    site.bench.delete_pod("p0")
    del site.pods["p0"]


def test_a_write_that_fails_keeps_nobody() -> None:
    site = Site({"a": 7, "b": 7})
    refused: KubeError = InvalidError("no", status=422)
    site.bench.api.refuse = once("resourceclaims", refused)
    site.start(3)
    assert site.unanswered == ["p1"]


def test_the_next_leader_counts_those_that_are_allocated() -> None:
    site = Site({"a": 7, "b": 7})
    site.start(3)
    site.bench.run()
    new = site.bench.succeeded_by()
    new.cluster.set_class(device_class("tapes", "device.driver == 'tape.example.com'"))
    for name in ("a", "b"):
        new.add_node(name)
    new.run()
    site.bench = new
    assert len(site.unanswered) == 1
    while site.bound < 3:
        site.round()
    assert site.bound == 3
