"""Objects beside claims and pods that the controller reads or writes with its service account."""

from __future__ import annotations

from hack.cluster.api import Api
from hack.cluster.chart import NAMESPACE
from tests.cluster.rbac.requests import (
    APPLY,
    CLASSES,
    DRIVER,
    MERGE,
    device_class,
    refusal,
)


def test_the_controller_reads_volumes_and_namespaces_and_writes_none(controller: Api) -> None:
    claims = "/api/v1/namespaces/default/persistentvolumeclaims"
    for path in (
        "/api/v1/persistentvolumes",
        "/api/v1/persistentvolumeclaims",
        "/api/v1/namespaces",
        "/apis/storage.k8s.io/v1/storageclasses",
        "/apis/resource.k8s.io/v1/resourceslices",
    ):
        assert controller.request("GET", path)["kind"].endswith("List")
    body = {"metadata": {"name": "mine"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    assert refusal(controller, "POST", claims, body=body)[0] == 403
    assert refusal(controller, "DELETE", "/api/v1/namespaces/default")[0] == 403


OURS = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'mig'"


def test_the_controller_writes_no_mignode(controller: Api, foreign_mignode: str) -> None:
    body = {"spec": {"drain": {"reason": "mine"}}}
    for where in (foreign_mignode, f"{foreign_mignode}/status"):
        assert refusal(controller, "PATCH", where, body=body, content=MERGE)[0] == 403


def test_the_controller_writes_its_own_device_classes(controller: Api, admin: Api) -> None:
    body = device_class("mig-test", OURS)
    where = f"{CLASSES}/mig-test?fieldManager=controller&force=true"
    assert controller.request("PATCH", where, body=body, content=APPLY)["spec"] == body["spec"]

    admin.create(device_class("nic.example", "device.driver == 'nic.example'", label="a"))
    status, text = refusal(controller, "DELETE", f"{CLASSES}/nic.example")
    assert (status, "with label mig.dra.dev/generated=true" in text) == (403, True), text
    for body, reason in (
        (device_class("mig-test", "true"), "select devices of driver mig.dra.dev only"),
        (device_class("mig-new", f"true || {OURS}"), "select devices of driver mig.dra.dev only"),
        (device_class("mig-new", OURS, label="a"), "with label mig.dra.dev/generated=true"),
        (device_class("nic.example", OURS), "with label mig.dra.dev/generated=true"),
    ):
        where = f"{CLASSES}/{body['metadata']['name']}?fieldManager=controller&force=true"
        status, text = refusal(controller, "PATCH", where, body=body, content=APPLY)
        assert (status, reason in text) == (403, True), text
    admin.delete("DeviceClass", "nic.example")
    controller.request("DELETE", f"{CLASSES}/mig-test")


def test_the_controller_keeps_its_own_lease_only(controller: Api) -> None:
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    for name, allowed in ((f"{DRIVER}-controller", True), ("someone-elses", False)):
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": NAMESPACE},
        }
        made = controller.request("POST", leases, body=lease)
        if allowed:
            controller.request("PUT", f"{leases}/{name}", body=made)
        else:
            assert refusal(controller, "PUT", f"{leases}/{name}", body=made)[0] == 403
    default = leases.replace(NAMESPACE, "default")
    assert refusal(controller, "POST", default, body=lease)[0] == 403
