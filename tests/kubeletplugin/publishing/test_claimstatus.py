"""``status.devices`` of claims: filled, taken away, and never in anybody's way."""

from __future__ import annotations

import msgspec
import pytest

from dra.common.resources import RESOURCE_CLAIMS
from dra.gpu.inventory import ClaimRef
from dra.kube.errors import ForbiddenError, InvalidError, KubeError, UnavailableError
from dra.kube.http import T
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.reported import events
from tests.kubeletplugin.helpers.rig import DRIVER, Rig

SLICE = "gpu-0-mig-1g5gb-19-4"


def test_it_tells_which_slice_the_claim_got(rig: Rig) -> None:
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    [device] = rig.claim_status(ref)
    made = rig.machine.gpu(0).gpu_instances[0]
    assert (device["driver"], device["pool"], device["device"]) == (DRIVER, rig.node, SLICE)
    assert device["data"] == {
        "profile": "1g.5gb",
        "parentUUID": rig.machine.gpu(0).uuid,
        "migUUID": made.compute_instances[0].uuid,
        "placement": {"start": 4, "size": 1},
        "gpuInstanceID": made.id,
        "computeInstanceID": made.compute_instances[0].id,
    }
    [condition] = device["conditions"]
    assert (condition["type"], condition["status"]) == ("Ready", "True")
    assert condition["lastTransitionTime"].endswith("Z")
    claim = rig.api.get(RESOURCE_CLAIMS, ref.name, namespace="default")
    assert f"{DRIVER}/kubelet-plugin" in {f["manager"] for f in claim["metadata"]["managedFields"]}


@pytest.mark.parametrize("error", [ForbiddenError("no", status=403), UnavailableError("down")])
def test_a_refused_write_fails_neither_prepare_nor_unprepare(rig: Rig, error: KubeError) -> None:
    ref = rig.claim(SLICE)
    rig.http.refuse = lambda method, path: (
        error if method == "PATCH" and path.endswith("/status") else None
    )
    rig.prepared(ref)
    assert rig.unprepare(ref) == ""


def test_a_status_that_the_api_server_can_never_take_is_told_and_not_tried_again(rig: Rig) -> None:
    refused: list[str] = []

    def refuse(method: str, path: str) -> InvalidError | None:
        if method != "PATCH" or "/resourceclaims/" not in path:
            return None
        refused.append(path)
        return InvalidError("status.allocation: Invalid value: field is immutable")

    rig.http.refuse = refuse
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    wait_for("the event", lambda: "ClaimStatusRefused" in dict(events(rig, ref.name)))
    assert "white space" in dict(events(rig, ref.name))["ClaimStatusRefused"]
    assert rig.statuses_idle()
    assert len(refused) == 1


def test_a_claim_that_replaced_ours_is_not_written_to(rig: Rig) -> None:
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    assert rig.statuses_idle()
    rig.delete_claim(ref)
    new = rig.claim(SLICE, name=ref.name)
    rig.http.writes = []
    assert rig.daemon is not None
    rig.daemon.statuses.show(ref)
    assert rig.claim_status(ClaimRef("default", new.name, new.uid)) == []
    assert not [path for _, path in rig.http.writes if "resourceclaims" in path]


def test_a_claim_that_cannot_be_understood_leaves_the_others_their_status(rig: Rig) -> None:
    strange = rig.claim(SLICE)

    def answer(path: str, kind: type[T]) -> T:
        found = rig.http.call("GET", path)
        if path.endswith(strange.name):
            found["status"]["devices"] = [{"driver": DRIVER}]
        return msgspec.json.decode(msgspec.json.encode(found), type=kind)

    rig.http.read = answer  # type: ignore[method-assign]
    rig.prepared(strange)
    ref = rig.claim("gpu-1-mig-1g5gb-19-4")
    rig.prepared(ref)
    assert rig.claim_status(ref)


def test_entries_of_another_driver_stay(rig: Rig) -> None:
    other = {"request": "r1", "driver": "net.example.com", "pool": "p", "device": "nic"}
    own = {"request": "r0", "driver": DRIVER, "pool": rig.node, "device": SLICE}
    ref = rig.claim(results=[own, other])
    theirs = {"driver": "net.example.com", "pool": "p", "device": "nic"}
    body = {"metadata": {"name": ref.name, "namespace": "default"}, "status": {"devices": [theirs]}}
    rig.api.apply(RESOURCE_CLAIMS, body, field_manager="other", subresource="status")
    rig.prepared(ref)
    assert {d["driver"] for d in rig.claim_status(ref)} == {DRIVER, "net.example.com"}
    assert rig.unprepare(ref) == ""
    assert rig.claim_status(ref) == [theirs]
