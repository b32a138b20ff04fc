"""Objects beside claims and pods that the controller reads or writes with its service account."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.cli import main, make_elector
from controller.options import Options
from dra.common.resources import Obj
from dra.kube.client import KubeApi
from dra.kube.lease import LEADERS, LeaderElector, leader_lease
from hack.cluster.api import Api
from hack.cluster.chart import NAMESPACE, pod_spec, render
from hack.cluster.controlplane import ControlPlane, write_kubeconfig
from hack.cluster.installation import Installation, apply, path
from sim.processes import wait_for
from tests.cluster.harness.accounts import token
from tests.cluster.rbac.requests import APPLY, CLASSES, DRIVER, device_class, refusal


def test_the_controller_reads_volumes_and_namespaces_and_writes_none(controller: Api) -> None:
    claims = "/api/v1/namespaces/default/persistentvolumeclaims"
    for where in (
        "/api/v1/persistentvolumes",
        "/api/v1/persistentvolumeclaims",
        "/api/v1/namespaces",
        "/apis/storage.k8s.io/v1/storageclasses",
        "/apis/resource.k8s.io/v1/resourceslices",
    ):
        assert controller.request("GET", where)["kind"].endswith("List")
    body = {"metadata": {"name": "mine"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    assert refusal(controller, "POST", claims, body=body)[0] == 403
    assert refusal(controller, "DELETE", "/api/v1/namespaces/default")[0] == 403


OURS = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'mig'"


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


def test_the_controller_keeps_its_own_lease_only(controller: Api, admin: Api) -> None:
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{LEADERS}/leases"

    def lease(name: str, namespace: str = LEADERS) -> Obj:
        metadata = {"name": name, "namespace": namespace}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}

    own = leader_lease(DRIVER)
    made = controller.request("POST", leases, body=lease(own))
    controller.request("PUT", f"{leases}/{own}", body=made)
    admin.request("DELETE", f"{leases}/{own}")
    status, text = refusal(controller, "POST", leases, body=lease("kube-scheduler"))
    assert (status, f"Lease {own} only" in text) == (403, True), text
    others = admin.request("POST", leases, body=lease("someone-elses"))
    assert refusal(controller, "PUT", f"{leases}/someone-elses", body=others)[0] == 403
    admin.request("DELETE", f"{leases}/someone-elses")
    for namespace in ("default", NAMESPACE):
        there = leases.replace(LEADERS, namespace)
        assert refusal(controller, "POST", there, body=lease(own, namespace))[0] == 403


@contextlib.contextmanager
def electors(
    installation: Installation, plane: ControlPlane, folder: Path
) -> Iterator[tuple[LeaderElector, LeaderElector]]:
    """Two controllers as the chart runs them in two namespaces, each with its own account."""
    second = f"{NAMESPACE}-2"
    admin = installation.api
    metadata = {"name": second}
    admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    with contextlib.ExitStack() as stack:
        found = []
        for namespace, values in ((NAMESPACE, {}), (second, {"fullnameOverride": "second"})):
            objects = render(values, namespace=namespace)
            rights = {"Role", "RoleBinding", "ServiceAccount"}
            for each in objects if namespace == second else ():
                if each["kind"] in rights and "controller" in each["metadata"]["name"]:
                    apply(admin, each)
                    stack.callback(admin.request, "DELETE", path(each))
            spec = pod_spec(objects, "controller")
            (arguments,) = (c["args"] for c in spec["containers"])
            config = folder / namespace
            given = token(installation, spec["serviceAccountName"], namespace=namespace)
            write_kubeconfig(
                config, server=plane.server, certificate=plane.certificate, token=given
            )
            flags = [each.replace("$(POD_NAME)", "pod-0") for each in arguments]
            context = main.make_context("controller", [*flags, f"--kubeconfig={config}"])
            options = Options(**context.params)
            api = stack.enter_context(
                contextlib.closing(KubeApi.connect(str(config), user_agent="tests"))
            )
            elector = make_elector(api, options)
            assert elector is not None
            found.append(elector)
        yield found[0], found[1]
    admin.request("DELETE", f"/api/v1/namespaces/{second}")


@pytest.mark.timeout(120)
def test_of_two_installations_one_leads_and_the_other_says_which(
    installation: Installation,
    plane: ControlPlane,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with electors(installation, plane, tmp_path) as (first, second):
        leads, ends = threading.Event(), threading.Event()

        def lead(lost: threading.Event) -> None:
            leads.set()
            ends.wait()

        def follow(lost: threading.Event) -> None:
            followed.set()
            second.stop()

        followed = threading.Event()
        threads = [threading.Thread(target=first.run, args=(lead,))]
        threads[0].start()
        assert leads.wait(30)
        threads.append(threading.Thread(target=second.run, args=(follow,)))
        threads[1].start()
        wait_for("words of the second", lambda: "another installation" in caplog.text)
        assert f"held by {NAMESPACE}/pod-0, of another installation of this driver" in caplog.text
        assert not followed.is_set()
        ends.set()
        assert followed.wait(30), "the lease was given back"
        for thread in threads:
            thread.join()
