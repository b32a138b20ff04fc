"""Room on a real kubelet: a pod that allows it is moved, and one of lower priority ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra.common.resources import Obj
from hack.cluster import controlplane
from hack.cluster.api import Api
from hack.cluster.binaries import Binaries
from sim.processes import wait_for
from tests.cluster.harness.daemons import DRIVER, daemon
from tests.cluster.harness.nodesite import NodeSite, running_node
from tests.cluster.harness.pods import pod
from tests.cluster.harness.workload import SLEEPING

NAME = "room-node"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def site(binaries: Binaries, root: Path) -> Iterator[NodeSite]:
    gpus = ("A100-SXM4-40GB", "A100-SXM4-40GB")
    with running_node(binaries, root / "room", name=NAME, gpus=gpus) as found:
        yield found


def movers(api: Api) -> list[Obj]:
    """Pods of the ReplicaSet that run and are not told to end."""
    found = api.list("Pod", labelSelector="app=mover")
    alive = [p for p in found if "deletionTimestamp" not in p["metadata"]]
    return [p for p in alive if p["status"].get("phase") == "Running"]


def slices(site: NodeSite, gpu: int) -> list[tuple[int, int]]:
    """Start and size of all instances on a GPU's hardware."""
    return sorted((g.start, g.size) for g in site.machine.gpu(gpu).gpu_instances)


def has_large(site: NodeSite) -> list[int]:
    return [gpu for gpu in (0, 1) if (0, 4) in slices(site, gpu)]


def test_a_pod_is_moved_and_one_of_lower_priority_ends(site: NodeSite, tmp_path: Path) -> None:
    api, workload = site.api, site.workload
    sizes = {"whole": "7g.40gb", "four": "4g.20gb", "three": "3g.20gb", "one": "1g.5gb"}
    claims = {
        name: {"gpu": workload.template(name, device_class=f"mig-{profile}")}
        for name, profile in sizes.items()
    }
    workload.run("keeps", claims=claims["four"])
    workload.run("fills", claims=claims["three"])
    (full,) = has_large(site)
    kept = workload.container("keeps")

    labels = {"app": "mover", f"{DRIVER}/movable": "true"}
    spec = pod("mover", SLEEPING, claims=claims["one"], terminationGracePeriodSeconds=1)["spec"]
    template = {"metadata": {"labels": labels}, "spec": {**spec, "restartPolicy": "Always"}}
    body = {"replicas": 1, "selector": {"matchLabels": {"app": "mover"}}, "template": template}
    api.create(
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "mover"}, "spec": body}
    )
    (before,) = wait_for("the mover", lambda: movers(api), context=workload.describe)
    assert [size for _, size in slices(site, 1 - full)] == [1], "beside the full GPU"
    filled = workload.claim_of("fills")
    assert filled is not None
    api.delete("Pod", "fills")
    workload.wait_for_end(filled, timeout=60)

    workload.create(pod("big", SLEEPING, claims=claims["whole"]))
    wait_for("word to big", lambda: "WaitingForSlice" in site.told("big"))
    kubeconfig = str(site.driver.control_plane.kubeconfig(controlplane.ADMIN))
    ran = subprocess.run(
        [sys.executable, "-m", "cli", "defrag", "-p", "7g.40gb", "--execute", "--timeout", "200"],
        env={**os.environ, "KUBECONFIG": kubeconfig},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    print(ran.stdout, ran.stderr)  # noqa: T201 - what a user sees
    assert ran.returncode == 0
    workload.wait_for_phase("big", "Running")
    (after,) = wait_for("the mover again", lambda: movers(api), context=workload.describe)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert slices(site, 1 - full) == [(0, 8)]
    assert sorted(size for _, size in slices(site, full)) == [1, 4]
    assert workload.container("keeps") == kept, "nobody touched it"

    site.driver.controller.stop()
    user = str(site.driver.control_plane.kubeconfig(controlplane.MIG_CONTROLLER))
    flags = ("--kubeconfig", user, "--identity", "ends", "--preemption")
    successor = daemon("controller-ends", "controller", *flags, logs=tmp_path)
    successor.start()
    try:
        urgent = pod(
            "urgent", SLEEPING, claims=claims["whole"], priorityClassName="system-cluster-critical"
        )
        workload.create(urgent)
        workload.wait_for_phase("urgent", "Running", timeout=120)
    finally:
        successor.stop()
    assert api.find("Pod", "big") is None
    assert [p["metadata"]["uid"] for p in movers(api)] == [after["metadata"]["uid"]]
    assert workload.container("keeps") == kept, "one victim is enough"
    assert slices(site, 1 - full) == [(0, 8)]
    assert sorted(size for _, size in slices(site, full)) == [1, 4]
