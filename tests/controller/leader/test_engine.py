"""Which pods get slices, in which order, and what the others are told."""

from __future__ import annotations

from typing import Any

import pytest

from controller import times
from dra.allocator.allocate import OngoingDecision
from dra.allocator.problem import Outcome
from dra.claims.claims import POD_CLAIM
from dra.common.resources import PODS, RESOURCE_CLAIMS, Obj
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import (
    FINALIZER,
    claim,
    device_class,
    pod,
    request,
)
from tests.controller.helpers.stored import Stored

STATUS = "resourceclaims/status"
NAMED = {"name": "s", "resourceClaimName": "p-s-x"}


@pytest.mark.parametrize(("asked", "taken", "says"), [("20Gi", "7g", True), ("19Gi", "3g", False)])
def test_a_claim_whose_selector_misses_a_profile_by_little_is_told_so(
    asked: str, taken: str, *, says: bool
) -> None:
    bench = Bench("node-a")
    memory = f"device.capacity['mig.dra.dev'].memory.compareTo(quantity('{asked}')) >= 0"
    bench.serve("p", "c", request("r", "mig.dra.dev", memory))
    assert f"-mig-{taken}" in bench.devices("c")[0]
    assert bench.recorder.reasons("c") == ["ProfileMissed"] * says
    told = " ".join(e[3] for e in bench.recorder.events)
    assert ("by class mig-min-20gb, or for quantity('19968Mi')" in told) is says


def test_a_pod_whose_containers_get_no_device_is_told_so_once_it_has_one() -> None:
    bench = Bench("node-a")
    bench.claim(claim("c"))
    bench.claim(claim("d"))
    used = [{"name": "d", "request": "other"}]
    containers = [{"name": "main", "image": "i", "resources": {"claims": used}}]
    bench.pod(pod("p", "c", "d", containers=containers))
    bench.run()
    (told,) = [e for e in bench.recorder.events if e[2] == "DeviceNotUsed"]
    assert told[:2] == ("Pod", "p")
    assert "no container uses claim 'c'" in told[3]
    assert "container 'main' gets no device of claim 'd': the claim has no request" in told[3]


def of_template() -> Obj:
    """A pod whose claim is to be made from a template, and is not named in its status yet."""
    body = pod("p")
    body["spec"]["resourceClaims"] = [{"name": "s", "resourceClaimTemplateName": "t"}]
    return body


def made_from_template(name: str = "p-s-x", *, uid: str = "uid-p", entry: str = "s") -> Obj:
    """A claim as kube-controller-manager makes it for that pod, by the controller's mirror."""
    made = claim(name)
    owner = {"kind": "Pod", "name": "p", "uid": uid, "controller": True}
    made["metadata"] |= {"ownerReferences": [owner], "annotations": {POD_CLAIM: entry}}
    return Stored(RESOURCE_CLAIMS)(made)


def test_a_claim_made_for_a_pod_is_allocated_before_the_status_of_the_pod_names_it() -> None:
    bench = Bench("node-a")
    bench.pod(of_template())
    bench.claim(made_from_template())
    bench.run()
    (device,) = bench.devices("p-s-x")
    (consumer,) = bench.api.get(RESOURCE_CLAIMS, "p-s-x")["status"]["reservedFor"]
    assert consumer["uid"] == "uid-p"
    bench.pod({**of_template(), "spec": of_template()["spec"] | {"priority": 1}})  # still unnamed
    bench.run()
    assert bench.cluster.pods["default", "p"].claims == {"s": "p-s-x"}
    bench.pod(of_template() | {"status": {"resourceClaimStatuses": [NAMED]}})
    bench.run()
    assert bench.devices("p-s-x") == [device]
    assert bench.api.writes == ["resourceclaims", STATUS]


def test_of_two_claims_made_for_a_pod_the_one_counts_that_its_status_names() -> None:
    bench = Bench("node-a")
    bench.pod(of_template())
    bench.claim(made_from_template("p-s-w"))
    bench.claim(made_from_template("p-s-x"))
    bench.run()
    assert (bool(bench.devices("p-s-w")), bench.devices("p-s-x")) == (True, [])
    bench.pod(of_template() | {"status": {"resourceClaimStatuses": [NAMED]}})
    bench.run()
    assert bench.devices("p-s-x")
    bench.delete_pod("p")
    bench.run(seconds=times.OWNED_CLAIM_UNUSED)
    bench.run(seconds=times.OWNED_CLAIM_UNUSED)
    assert (bench.devices("p-s-w"), bench.devices("p-s-x")) == ([], [])


def test_a_claim_that_another_pod_owns_is_not_taken() -> None:
    bench = Bench("node-a")
    made = claim("c")
    made["metadata"]["ownerReferences"] = [
        {"kind": "Pod", "name": "p", "uid": "earlier", "controller": True}
    ]
    bench.claim(made)
    bench.pod(pod("p", "c"))
    bench.run()
    assert bench.api.writes == []


def test_a_class_that_comes_later_makes_the_claims_that_ask_for_it_ours() -> None:
    bench = Bench("node-a")
    bench.serve("p", "c", request("r", "mine"), schedulingGates=[{"name": FINALIZER}])
    assert not bench.devices("c")
    bench.cluster.set_class(device_class("mine", "device.driver == 'mig.dra.dev'"))
    bench.run()
    assert bench.devices("c")
    assert bench.api.get(PODS, "p")["spec"]["schedulingGates"] == []


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        ([request("r", "of-nobody")], "NoSuchDeviceClass"),
        ([request("r", "network")], "UnsupportedRequest"),
        ([], "UnsupportedRequest"),
    ],
)
def test_a_pod_is_told_that_nobody_lifts_its_gate(
    requests: list[Obj], reason: str, *, gated: bool
) -> None:
    bench = Bench("node-a")
    bench.cluster.set_class(device_class("network", "device.driver == 'network.example.com'"))
    obj = claim("c")
    obj["spec"]["devices"]["requests"] = requests
    bench.claim(obj)
    bench.pod(pod("p", "c", schedulingGates=[{"name": FINALIZER}] if gated else []))
    bench.run()
    assert bench.recorder.reasons("p") == ([reason] if gated else [])


def test_a_pod_that_cannot_be_handled_does_not_keep_others_from_their_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench("node-a")
    go_on = OngoingDecision.go_on

    def failing(self: OngoingDecision, **steps: Any) -> Outcome | None:
        if self.problem.pod.key[1] == "poison":
            raise RuntimeError("never seen before")
        return go_on(self, **steps)

    monkeypatch.setattr(OngoingDecision, "go_on", failing)
    for name in ("poison", "sound"):
        bench.ask(name, name)
    for _ in range(10):
        bench.run(seconds=1)
    assert bench.devices("sound")
    assert not bench.devices("poison")
    monkeypatch.undo()
    bench.run(seconds=31)
    assert bench.devices("poison")
