"""``kubectl mig`` on a real control plane: what only a real API server answers as it does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hack.cluster.api import Api
from hack.cluster.binaries import Binaries
from hack.cluster.controlplane import ADMIN
from sim.processes import wait_for
from tests.cluster.harness.daemons import Driver
from tests.cluster.harness.ground import served_plane
from tests.cluster.harness.pods import add_fake_node, pod

NODE = "looked-at"


@dataclass(frozen=True)
class Site:
    """A cluster with one GPU, and the command line for it. ``below`` is for more nodes."""

    api: Api
    kubeconfig: Path
    driver: Driver
    below: Path

    def tails(self) -> str:
        """The ends of the logs of the driver."""
        return self.driver.tails()

    def mig(self, *arguments: str) -> tuple[int, Any]:
        """Exit code and JSON."""
        code, text = self.told(*arguments, "-o", "json")
        return code, json.loads(text)

    def told(self, *arguments: str) -> tuple[int, str]:
        """Exit code and text."""
        ended = subprocess.run(
            [sys.executable, "-m", "cli", *arguments],
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return ended.returncode, ended.stdout


@pytest.fixture(scope="module")
def site(binaries: Binaries, root: Path) -> Iterator[Site]:
    with served_plane(binaries, root / "mig") as control_plane:
        api = control_plane.api
        add_fake_node(api, NODE)
        below = root / "m"
        below.mkdir()
        driver = Driver(control_plane, below)
        driver.add_node(NODE, **_hardware(below))
        with driver:
            wait_for(
                "the node's devices and their classes",
                lambda: api.find("MigNode", NODE) and api.find("DeviceClass", "mig-min-10gb"),
                context=driver.tails,
            )
            yield Site(api, control_plane.kubeconfig(ADMIN), driver, below)


def _hardware(below: Path) -> dict[str, Any]:
    roots = {"kubelet_root": below / "k", "cdi_root": below / "cdi"}
    return {"gpus": ("A100-SXM4-40GB",), **roots}


def _claim(api: Api, name: str, device_class: str, **metadata: Any) -> None:
    request = {"name": "slice", "exactly": {"deviceClassName": device_class}}
    api.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, **metadata},
            "spec": {"devices": {"requests": [request]}},
        }
    )


def _pod(api: Api, name: str, claim: str, **spec: Any) -> None:
    claims = {"gpu": {"resourceClaimName": claim}}
    api.create(pod(name, {"main": ["sleep", "1000000"]}, claims=claims, **spec))


def _start(api: Api, name: str, device_class: str, **spec: Any) -> None:
    _claim(api, name, device_class)
    _pod(api, name, name, **spec)


def _node_of(api: Api, pod_name: str) -> str:
    found: str = api.get("Pod", pod_name)["spec"].get("nodeName", "")
    return found


def test_a_pod_is_followed_from_waiting_over_draining_to_its_end(site: Site) -> None:
    code, found = site.mig("doctor")
    checks = {c["name"]: (c["status"], c["message"]) for c in found["checks"]}
    assert (code, found["summary"]["fail"]) == (0, 0), found
    assert checks["kubernetes"][0] == "ok"
    assert checks["rights"] == ("ok", "you may read everything")

    _start(site.api, "large", "mig-7g.40gb")
    _wait_for_binding(site, "large", NODE)
    _start(site.api, "late", "mig-3g.20gb")
    (slot,) = site.mig("map")[1]["nodes"][0]["gpus"][0]["slots"]
    assert (slot["profile"], slot["pods"]) == ("7g.40gb", ["large"])

    code, found = site.mig("explain", "late")
    assert (code, found["reason"]) == (1, "NoRoom")
    assert "claim default/large of pod large" in found["findings"][0]["message"]

    code, text = site.told("drain", NODE, "--evict", "--reason", "driver 580")
    assert (code, "  pod default/large evicted\n" in text) == (1, True), text
    wait_for("the pod to go", lambda: site.api.find("Pod", "large") is None)
    wait_for("the GPU to be free", lambda: site.told("drain", NODE)[0] == 0)
    assert site.mig("explain", "late")[1]["reason"] == "Drained"
    assert not _node_of(site.api, "late")

    assert site.told("resume", NODE)[1].endswith("back in service: gpu-0\n")
    _wait_for_binding(site, "late", NODE)
    code, found = site.mig("explain", "claim/late")
    assert (code, found["state"]) == (1, "Starting"), "no kubelet runs it"
    assert found["devices"][0]["node"] == NODE


def _status(api: Api, claim: str, field: str) -> Any:
    return api.get("ResourceClaim", claim)["status"].get(field)


def _wait_for_binding(site: Site, pod_name: str, node: str) -> None:
    wait_for("its binding", lambda: _node_of(site.api, pod_name) == node, context=site.tails)


def _wait_for_end_of_reservation(api: Api, claim: str) -> None:
    wait_for("the end of its reservation", lambda: not _status(api, claim, "reservedFor"))


@pytest.fixture
def retired(site: Site) -> Iterator[str]:
    """A second node with a GPU; controller and plugin may be stopped."""
    name = "retired"
    below = site.below / "r"
    below.mkdir()
    add_fake_node(site.api, name)
    site.driver.add_node(name, **_hardware(below))
    site.driver.plugins[name].start()
    wait_for("its MigNode", lambda: site.api.find("MigNode", name), context=site.tails)
    yield name
    site.driver.plugins.pop(name).stop()
    if not site.driver.controller.running:
        site.driver.controller.start()


def test_claims_that_a_driver_left_behind_are_released_without_it(site: Site, retired: str) -> None:
    there = {"nodeSelector": {"kubernetes.io/hostname": retired}}
    for name in ("ended", "shared"):
        _start(site.api, name, "mig-1g.5gb", **there)
        _wait_for_binding(site, name, retired)
    site.driver.controller.stop()
    site.driver.plugins[retired].stop()

    _claim(site.api, "waiting", "mig-1g.5gb", finalizers=["mig.dra.dev/allocation"])
    for name in ("waiting", "ended"):
        site.api.delete("ResourceClaim", name)
        assert site.api.find("ResourceClaim", name), "the finalizer keeps it"
    names = ["waiting", "ended", "shared"]
    code, text = site.told("release", *names)
    assert (code, sorted(text.splitlines())) == (
        1,
        [
            "default/ended  kept: in use by pod ended",
            "default/shared  kept: in use by pod shared",
            "default/waiting  released",
        ],
    )
    assert site.api.find("ResourceClaim", "waiting") is None

    site.api.delete("Node", retired)
    for name in ("ended", "shared"):
        site.api.delete("Pod", name, grace=0)
        _wait_for_end_of_reservation(site.api, name)
        assert _status(site.api, name, "allocation")
    assert site.told("release", "ended", "shared", "--dry-run")[0] == 0
    assert site.told("release", "ended", "shared")[0] == 0
    assert site.api.find("ResourceClaim", "ended") is None
    assert not site.api.get("ResourceClaim", "shared")["metadata"].get("finalizers")
    assert not _status(site.api, "shared", "allocation")

    site.driver.controller.start()
    _pod(site.api, "again", "shared")
    _wait_for_binding(site, "again", NODE)
