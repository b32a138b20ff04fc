"""The validating webhook behind a real API server, with the chart's account."""

from __future__ import annotations

import base64
import contextlib
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra.common.resources import Obj
from hack.cluster import controlplane
from hack.cluster.api import ApiError, collection
from hack.cluster.binaries import Binaries
from hack.cluster.chart import NAMESPACE, find, pod_spec
from hack.cluster.controlplane import ControlPlane, Setup
from hack.cluster.installation import Installation, path
from hack.cluster.machine import free_ports
from kubeletplugin.gpus.node import read_classes
from sim.processes import Process, wait_for
from tests.cluster.harness.accounts import acting, token
from tests.controller.webhook.test_webhook import BAD, GOOD

ACCOUNT = "mig-dra-driver-nvidia-mig-webhook"
LIFE_SECONDS = 36.0
VALUES: Obj = {
    "webhook": {"enabled": True, "certificateHours": LIFE_SECONDS / 3600},
    "nodeClasses": {"configMaps": ["site-layouts"]},
}


class Webhook:
    """The program, started as the chart's Deployment does, but beside the cluster."""

    def __init__(self, plane: ControlPlane, home: Path) -> None:
        (self.port,) = free_ports(1)
        self.plane = plane
        self.installation = Installation(plane, VALUES, adapt=self._reachable)
        objects = self.installation.apply()
        (container,) = pod_spec(objects, "webhook")["containers"]
        kubeconfig = home / "webhook.kubeconfig"
        controlplane.write_kubeconfig(
            kubeconfig,
            server=plane.server,
            certificate=plane.certificate,
            token=token(self.installation, ACCOUNT),
        )
        own = (f"--port={self.port}", "--host-name=localhost", f"--kubeconfig={kubeconfig}")
        self.process = Process(
            "webhook",
            [sys.executable, *container["command"][1:], *container["args"], *own],
            logs=home,
        )
        self.configuration = path(find(objects, "ValidatingWebhookConfiguration"))
        self.secret = path(find(objects, "Secret"))

    def _reachable(self, objects: list[Obj]) -> list[Obj]:
        """There is no network for Services: the API server is given an address instead."""
        for hook in find(objects, "ValidatingWebhookConfiguration")["webhooks"]:
            hook["clientConfig"] = {"url": f"https://localhost:{self.port}/validate"}
        return objects

    def presented(self) -> str:
        """The certificate that it serves, or an empty string."""
        with contextlib.suppress(OSError, ssl.SSLError):
            return ssl.get_server_certificate(("localhost", self.port), timeout=5)
        return ""

    def trusted(self) -> bool:
        """Whether a new connection succeeds with what the API server was told to trust."""
        found = self.plane.api.request("GET", self.configuration)["webhooks"]
        (bundle,) = {each["clientConfig"]["caBundle"] for each in found}
        context = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
        address = ("localhost", self.port)
        with (
            contextlib.suppress(ssl.SSLCertVerificationError),
            socket.create_connection(address, timeout=5) as plain,
            context.wrap_socket(plain, server_hostname="localhost"),
        ):
            return True
        return False

    def refusal(self, body: Obj) -> str:
        """Why the API server does not take an object; an empty string if it does."""
        kind, namespace = body["kind"], body["metadata"].get("namespace", "default")
        where = f"{collection(kind, namespace=namespace)}?dryRun=All"
        try:
            self.plane.api.request("POST", where, body=body)
        except ApiError as error:
            if error.status != 422:
                raise
            return str(error)
        return ""


@pytest.fixture(scope="module")
def webhook(binaries: Binaries, root: Path) -> Iterator[Webhook]:
    home = root / "wh"
    home.mkdir()
    controllers = ("serviceaccount", "serviceaccount-token", "clusterrole-aggregation")
    setup = Setup(scheduling=False, controllers=controllers)
    with ControlPlane(binaries, home, setup=setup) as plane:
        made = Webhook(plane, home)
        made.process.start()
        try:
            wait_for(
                "webhook that is called",
                lambda: made.refusal(obj("DeviceClass", BAD)),
                context=made.process.tail,
            )
            yield made
        finally:
            made.process.stop()


def obj(kind: str, *parameters: Any, driver: str = "mig.dra.dev") -> Obj:
    config = [{"opaque": {"driver": driver, "parameters": each}} for each in parameters]
    request = {"name": "slice", "exactly": {"deviceClassName": "mig-1g.5gb"}}
    devices = {"requests": [request], "config": config}
    spec: dict[str, Obj] = {
        "DeviceClass": {"config": config},
        "ResourceClaim": {"devices": devices},
        "ResourceClaimTemplate": {"spec": {"devices": devices}},
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": "tried"},
        "spec": spec[kind],
    }


@pytest.mark.parametrize("kind", ["DeviceClass", "ResourceClaim", "ResourceClaimTemplate"])
def test_a_bad_configuration_is_refused_at_creation(webhook: Webhook, kind: str) -> None:
    text = webhook.refusal(obj(kind, GOOD, BAD))
    assert "config[1].opaque.parameters.placement.policy" in text
    assert "tried" in text
    assert "MigDeviceConfig of mig.dra.dev/v1alpha1 looks like" in text
    assert webhook.refusal(obj(kind, GOOD)) == ""
    assert webhook.refusal(obj(kind)) == ""
    assert webhook.refusal(obj(kind, BAD, driver="gpu.nvidia.com")) == ""


def test_a_file_of_node_classes_is_refused_with_the_words_of_the_node(
    webhook: Webhook, tmp_path: Path
) -> None:
    text = "apiVersion: mig.dra.dev/v1alpha1\nkind: MigNodeClass\nmode: {}\n"

    def refusal(mode: str, name: str = "site-layouts", namespace: str = NAMESPACE) -> str:
        metadata = {"name": name, "namespace": namespace}
        data = {"default.yaml": text.format(mode), "notes.txt": "["}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        return webhook.refusal(body)

    (tmp_path / "default.yaml").write_text(text.format("fast"))
    told = read_classes(tmp_path).problems["default"]
    assert f"ConfigMap {NAMESPACE}/site-layouts: data.{told}" in refusal("fast")
    assert refusal("whole") == ""
    assert refusal("fast", name="another") == ""
    assert refusal("fast", namespace="default") == "", "nobody mounts that one"


def test_the_certificate_is_replaced_and_no_bad_configuration_slips_through(
    webhook: Webhook,
) -> None:
    """Through two replacements; where it could not be reached, they would be let through."""
    seen = {webhook.presented()}
    deadline = time.monotonic() + 3 * LIFE_SECONDS
    while len(seen) < 3 and time.monotonic() < deadline:
        assert webhook.refusal(obj("ResourceClaim", BAD))
        seen.add(webhook.presented())
        # Twice: it may have been replaced since we asked whom to trust.
        assert webhook.trusted() or webhook.trusted()
    assert len(seen) == 3
    assert "" not in seen
    assert webhook.refusal(obj("ResourceClaim", GOOD)) == ""


def test_a_lost_certificate_is_made_again(webhook: Webhook) -> None:
    api = webhook.plane.api
    before = webhook.presented()
    merge = "application/merge-patch+json"
    api.request("PATCH", webhook.secret, body={"data": None}, content=merge)
    wait_for("other certificate", lambda: webhook.presented() not in {"", before})
    assert webhook.refusal(obj("ResourceClaim", BAD))


def test_the_webhooks_account_reads_no_other_secret(webhook: Webhook) -> None:
    api = acting(webhook.installation, ACCOUNT)
    assert api.request("GET", webhook.secret)["metadata"]["name"] == ACCOUNT
    for where in (f"{webhook.secret}x", f"/api/v1/namespaces/{NAMESPACE}/secrets"):
        with pytest.raises(ApiError) as refused:
            api.request("GET", where)
        assert refused.value.status == 403


def test_nothing_is_refused_while_the_webhook_is_away(webhook: Webhook) -> None:
    webhook.process.stop()
    assert webhook.refusal(obj("ResourceClaim", BAD)) == ""
    webhook.process.start()
    wait_for("webhook", lambda: webhook.refusal(obj("ResourceClaim", BAD)))
