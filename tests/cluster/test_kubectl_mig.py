"""``kubectl mig`` on a real control plane: what only a real API server answers as it does."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.cluster.api import Api, ApiError
from hack.cluster.binaries import Binaries
from hack.cluster.chart import NAMESPACE, REPOSITORY
from hack.cluster.controlplane import ControlPlane
from hack.cluster.credentials import ADMIN
from hack.cluster.nodes import add_fake_node, pod
from hack.cluster.waiting import wait_for
from tests.cluster.conftest import USERS
from tests.cluster.harness.daemons import Driver

NODE = "looked-at"


@dataclass(frozen=True)
class Site:
    """A cluster with one GPU, and the command line for it."""

    api: Api
    kubeconfig: Path

    def mig(self, *arguments: str) -> tuple[int, Any]:
        """Exit code and JSON."""
        ended = subprocess.run(
            [sys.executable, "-m", "cli", *arguments, "-o", "json"],
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return ended.returncode, json.loads(ended.stdout)


@pytest.fixture(scope="module")
def site(binaries: Binaries, root: Path) -> Iterator[Site]:
    home = root / "mig"
    home.mkdir()
    with ControlPlane(binaries, home, users=USERS) as control_plane:
        api = control_plane.api
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        api.create(yaml.safe_load((REPOSITORY / "api/crds/mignodes.yaml").read_text()))
        wait_for("MigNode", _answers(lambda: api.list("MigNode") == []))
        add_fake_node(api, NODE)
        below = root / "m"
        below.mkdir()
        driver = Driver(control_plane, below)
        roots = {"kubelet_root": below / "k", "cdi_root": below / "cdi"}
        driver.add_node(NODE, gpus=("A100-SXM4-40GB",), **roots)
        with driver:
            wait_for(
                "the node's devices and their classes",
                lambda: api.find("MigNode", NODE) and api.find("DeviceClass", "mig-min-10gb"),
                context=driver.tails,
            )
            yield Site(api, control_plane.kubeconfig(ADMIN))


def _answers(holds: Callable[[], bool]) -> Callable[[], bool]:
    def asked() -> bool:
        with contextlib.suppress(ApiError):
            return holds()
        return False

    return asked


def _start(api: Api, name: str, device_class: str) -> None:
    request = {"name": "slice", "exactly": {"deviceClassName": device_class}}
    api.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {"devices": {"requests": [request]}},
        }
    )
    claims = {"gpu": {"resourceClaimName": name}}
    api.create(pod(name, {"main": ["sleep", "1000000"]}, claims=claims))


def test_a_pod_is_followed_from_waiting_over_draining_to_its_end(site: Site) -> None:
    code, found = site.mig("doctor")
    checks = {c["name"]: (c["status"], c["message"]) for c in found["checks"]}
    assert (code, found["summary"]["fail"]) == (0, 0), found
    assert checks["kubernetes"][0] == "ok"
    assert checks["rights"] == ("ok", "you may read everything, and drain")

    _start(site.api, "large", "mig-7g.40gb")
    wait_for("its binding", lambda: site.api.get("Pod", "large")["spec"].get("nodeName") == NODE)
    _start(site.api, "late", "mig-3g.20gb")
    (slot,) = site.mig("map")[1]["nodes"][0]["gpus"][0]["slots"]
    assert (slot["profile"], slot["pods"]) == ("7g.40gb", ["large"])

    code, found = site.mig("explain", "late")
    assert (code, found["reason"]) == (1, "NoRoom")
    assert "claim default/large of pod large" in found["findings"][0]["message"]

    code, found = site.mig("drain", NODE, "--evict", "--reason", "driver 580")
    assert (code, found["evicted"]) == (1, ["default/large"])
    wait_for("the pod to go", lambda: site.api.find("Pod", "large") is None)
    wait_for("the GPU to be free", lambda: site.mig("drain", NODE)[0] == 0)
    assert site.mig("explain", "late")[1]["reason"] == "Drained"
    assert not site.api.get("Pod", "late")["spec"].get("nodeName")

    assert site.mig("resume", NODE)[1]["drained"] == []
    wait_for("its binding", lambda: site.api.get("Pod", "late")["spec"].get("nodeName") == NODE)
    code, found = site.mig("explain", "claim/late")
    assert (code, found["state"]) == (1, "Starting"), "no kubelet runs it"
    assert found["devices"][0]["node"] == NODE
