"""Control plane of these tests, with two nodes without kubelet, and pods that it serves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra.common.resources import Obj
from hack.cluster.api import Api
from hack.cluster.binaries import Binaries
from hack.cluster.controlplane import ControlPlane
from sim.processes import wait_for
from tests.cluster.claims.bodies import Serve
from tests.cluster.harness.daemons import Driver
from tests.cluster.harness.ground import served_plane
from tests.cluster.harness.pods import add_fake_node, pod
from tests.cluster.harness.workload import SLEEPING

NODES = ("feature-a", "feature-b")


@pytest.fixture(scope="package")
def served(binaries: Binaries, root: Path) -> Iterator[Api]:
    """A control plane of its own with two nodes without kubelet, each with two A100."""
    with served_plane(binaries, root / "features") as control_plane:
        yield from _with_driver(control_plane, root)


def _with_driver(control_plane: ControlPlane, root: Path) -> Iterator[Api]:
    api = control_plane.api
    home = root / "f"
    home.mkdir()
    driver = Driver(control_plane, home)
    for name in NODES:
        add_fake_node(api, name, labels={"test/features": "yes"})
        driver.add_node(
            name,
            gpus=("A100-SXM4-40GB", "A100-SXM4-40GB"),
            kubelet_root=home / f"{name}-k",
            cdi_root=home / f"{name}-cdi",
        )
    with driver:
        wait_for(
            "devices of every node and their classes",
            lambda: (
                all(api.find("MigNode", n) for n in NODES)
                and api.find("DeviceClass", "mig-min-10gb") is not None
            ),
            context=driver.tails,
        )
        yield api


@pytest.fixture
def serve(served: Api) -> Iterator[Serve]:
    """Makes a claim and a pod for it, waits for the binding, and returns the results."""
    api = served
    made: list[str] = []

    def act(
        name: str, *requests: Obj, names: tuple[str, ...] = ("gpu",), **devices: Any
    ) -> list[Obj]:
        spec = {"devices": {"requests": list(requests), **devices}}
        api.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": spec,
            }
        )
        made.append(name)
        claims = {n: {"resourceClaimName": name} for n in names}
        api.create(pod(name, SLEEPING, claims=claims, nodeSelector={"test/features": "yes"}))

        def seen() -> str:
            events = api.list("Event", fieldSelector=f"involvedObject.name={name}")
            return "\n".join(str(e["message"]) for e in events)

        node = wait_for(
            f"node of pod {name}",
            lambda: api.get("Pod", name)["spec"].get("nodeName", ""),
            timeout=30.0,
            context=seen,
        )
        status = api.get("ResourceClaim", name)["status"]
        (term,) = status["allocation"]["nodeSelector"]["nodeSelectorTerms"]
        assert term["matchFields"][0]["values"] == [node]
        assert [r["name"] for r in status["reservedFor"]] == [name]
        results: list[Obj] = status["allocation"]["devices"]["results"]
        return results

    yield act
    for name in made:
        api.delete("Pod", name, grace=0)
    for name in made:
        api.delete("ResourceClaim", name)
    wait_for("claims to go", lambda: not any(api.find("ResourceClaim", n) for n in made))
