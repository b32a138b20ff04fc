"""Daemons that restart at rest change nothing, and serve the next pod."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from dra.kube.lease import LEADERS, leader_lease
from hack.cluster.api import Api
from hack.cluster.controlplane import MIG_CONTROLLER, MIG_PLUGIN, ControlPlane
from hack.cluster.kubelet import KubeletNode
from sim.processes import Process, wait_for
from tests.cluster.harness.audit import Request, audit
from tests.cluster.harness.daemons import DRIVER, Driver
from tests.cluster.harness.pods import pod
from tests.cluster.harness.workload import SLEEPING, Workload

REST_SECONDS = 10.0
"""How long the restarted daemons are watched once the controller leads again."""

RETRY_SECONDS = 40.0
"""Less than the minute after which kubelet repeats a failed Prepare by itself."""


def writes(control_plane: ControlPlane, *, since: int) -> list[Request]:
    """What the driver wrote, but for the lease of its controller."""
    return [
        write
        for user in (MIG_CONTROLLER, MIG_PLUGIN)
        for write in audit(control_plane).writes(since=since, user=user.name)
        if write.resource != "leases"
    ]


def settle(control_plane: ControlPlane) -> None:
    """Waits until the driver wrote nothing for two seconds."""

    def quiet() -> bool:
        mark = audit(control_plane).mark()
        time.sleep(2)
        return not writes(control_plane, since=mark)

    wait_for("rest", quiet, timeout=60)


def renewed(api: Api) -> str:
    """When the controller last renewed its lease."""
    lease = api.get("Lease", leader_lease(DRIVER), namespace=LEADERS)
    return str(lease["spec"]["renewTime"])


@pytest.mark.parametrize("end", [Process.stop, Process.kill], ids=["stop", "kill"])
def test_restarting_both_daemons_at_rest_writes_nothing(
    *,
    end: Callable[[Process], int],
    api: Api,
    control_plane: ControlPlane,
    driver: Driver,
    kubelet: KubeletNode,
    workload: Workload,
) -> None:
    claims = {"gpu": workload.template("rest", device_class="mig-1g.5gb")}
    where: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": kubelet.name}}
    workload.run("before", claims=claims, **where)
    settle(control_plane)
    hardware = driver.hardware[kubelet.name].contents()
    specs = {file.name: file.stat().st_mtime_ns for file in kubelet.cdi_root.iterdir()}
    mark = audit(control_plane).mark()

    for process in driver.processes():
        end(process)
    last = renewed(api)
    for process in driver.processes():
        process.start()
    wait_for("leading controller", lambda: renewed(api) != last, context=driver.tails)
    time.sleep(REST_SECONDS)

    for process in driver.processes():
        process.assert_running()
    assert writes(control_plane, since=mark) == []
    assert driver.hardware[kubelet.name].contents() == hardware
    assert {file.name: file.stat().st_mtime_ns for file in kubelet.cdi_root.iterdir()} == specs

    workload.run("after", claims=claims, **where)


@pytest.mark.timeout(300)
def test_a_pod_made_right_after_a_restart_does_not_wait_for_kubelets_retry(
    api: Api, driver: Driver, kubelet: KubeletNode, workload: Workload
) -> None:
    plugin = driver.plugins[kubelet.name]
    where: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": kubelet.name}}
    claims = {"gpu": workload.template("early", device_class="mig-1g.5gb")}
    kubelet.configure(syncFrequency="1m0s")
    try:
        for number in range(3):
            plugin.kill()
            plugin.start()
            workload.create(pod(f"early-{number}", SLEEPING, claims=claims, **where))
            workload.wait_for_phase(f"early-{number}", "Running", timeout=RETRY_SECONDS)
    finally:
        workload.clear()
        kubelet.configure(syncFrequency="5s")
