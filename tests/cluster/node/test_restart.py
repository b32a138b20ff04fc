"""Daemons that restart at rest change nothing, and serve the next pod."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from dra.common.resources import Obj
from dra.kube.lease import LEADERS, leader_lease
from hack.cluster.api import Api
from hack.cluster.controlplane import MIG_CONTROLLER, MIG_PLUGIN, ControlPlane
from hack.cluster.kubelet import KubeletNode
from kubeletplugin.times import HEARTBEAT_SECONDS
from sim.processes import Process, wait_for
from tests.cluster.harness.agreement import Agreement, Slice
from tests.cluster.harness.audit import Request, audit
from tests.cluster.harness.daemons import DRIVER, Driver, registrations
from tests.cluster.harness.pods import pod
from tests.cluster.harness.watcher import Watcher
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


class Heartbeats:
    """By node: changes of its MigNode that changed ``lastHeartbeatTime`` alone."""

    def __init__(self, api: Api) -> None:
        self.seen = Counter[str]()
        self._last = {each["metadata"]["name"]: self._rest(each) for each in api.list("MigNode")}

    def take(self, event: Obj) -> None:
        name, rest = event["object"]["metadata"]["name"], self._rest(event["object"])
        self.seen[name] += rest == self._last.get(name)
        self._last[name] = rest

    def _rest(self, node: Obj) -> list[Obj]:
        status = {k: v for k, v in node["status"].items() if k != "lastHeartbeatTime"}
        meta = node["metadata"]
        return [node["spec"], status, meta.get("ownerReferences", []), meta.get("labels", {})]


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
    heartbeats = Heartbeats(api)
    hardware = driver.hardware[kubelet.name].contents()
    specs = {file.name: file.stat().st_mtime_ns for file in kubelet.cdi_root.iterdir()}
    mark, began = audit(control_plane).mark(), time.monotonic()

    with Watcher(api, "MigNode", heartbeats.take):
        for process in driver.processes():
            end(process)
        last = renewed(api)
        for process in driver.processes():
            process.start()
        wait_for("leading controller", lambda: renewed(api) != last, context=driver.tails)
        time.sleep(REST_SECONDS)
        written = writes(control_plane, since=mark)

    for process in driver.processes():
        process.assert_running()
    told = Counter(each.name for each in written if each.resource == "mignodes/status")
    assert [each for each in written if each.resource != "mignodes/status"] == []
    assert told <= heartbeats.seen
    assert max(told.values(), default=0) <= 1 + (time.monotonic() - began) // HEARTBEAT_SECONDS
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


# -- kubelet restarts, the node reboots, the CDI specs vanish: running pods keep their slices


SHOW = ["sh", "-c", "ls /dev/nvidia-caps | tr '\\n' ' '; echo; sleep 1000000"]
"""Prints the capability nodes in one line."""


CREATED = ["nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"]
"""Calls that change the hardware when one slice is made."""


CHECK_SECONDS = 75.0
"""The plugin compares every 30 s what it holds with what there is; here it is not alone."""


def lasting_pod(name: str, claims: dict[str, dict[str, str]], kubelet: KubeletNode) -> Obj:
    """A pod whose container is started again whenever it ends."""
    where: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": kubelet.name}}
    return pod(name, {"main": SHOW}, claims=claims, restartPolicy="Always", **where)


def second_start(kubelet: KubeletNode, workload: Workload, running: Obj) -> list[str]:
    """Lines that SHOW printed, one for each start of the container, once there were two."""
    return wait_for(
        f"second start of {running['metadata']['name']}",
        lambda: lines if len(lines := kubelet.log(running, "main").splitlines()) == 2 else None,
        timeout=90,
        context=workload.describe,
    )


def identity(held: Slice) -> tuple[int, int]:
    """Parts of a slice that a device name stands for."""
    return held.profile, held.start


def test_pods_get_their_slices_in_the_same_place_after_a_reboot(
    agreement: Agreement, driver: Driver, kubelet: KubeletNode, workload: Workload
) -> None:
    plugin = driver.plugins[kubelet.name]
    bodies = []
    for name, size in (("small", "1g.5gb"), ("large", "3g.20gb")):
        claims = {"gpu": workload.template(name, device_class=f"mig-{size}")}
        bodies.append(workload.create(lasting_pod(name, claims, kubelet)))
    for body in bodies:
        workload.wait_for_phase(body["metadata"]["name"], "Running")
    held = agreement.settle(context=workload.describe)
    registered = registrations(plugin)

    kubelet.lose_power()
    plugin.kill()
    agreement.machine.reboot()
    agreement.foreign = None  # nor does a slice of others outlive a reboot
    kubelet.boot()
    plugin.start()
    wait_for("registration", lambda: registrations(plugin) > registered, context=kubelet.tails)
    for body in bodies:
        second_start(kubelet, workload, body)

    now = agreement.settle(context=workload.describe)
    assert now.keys() == held.keys()
    assert {key: identity(each) for key, each in now.items()} == {
        key: identity(each) for key, each in held.items()
    }
    assert not {each.uuid for each in now.values()} & {each.uuid for each in held.values()}


@pytest.mark.parametrize("restarted", [True, False], ids=["restart", "check"])
def test_lost_cdi_specs_are_written_again_for_containers_that_start_again(
    *,
    restarted: bool,
    agreement: Agreement,
    driver: Driver,
    kubelet: KubeletNode,
    workload: Workload,
) -> None:
    claims = {"gpu": workload.template("cdi", device_class="mig-2g.10gb")}
    body = workload.create(lasting_pod("cdi", claims, kubelet))
    workload.wait_for_phase("cdi", "Running")
    held = agreement.settle(context=workload.describe)
    mark = len(agreement.machine.mutations())

    shutil.rmtree(kubelet.cdi_root)
    if restarted:
        driver.plugins[kubelet.name].kill()
        driver.plugins[kubelet.name].start()
    assert agreement.settle(timeout=CHECK_SECONDS, context=workload.describe) == held

    container, _ = workload.container("cdi")
    kubelet.containerd.kill_task(container)
    first, second = second_start(kubelet, workload, body)
    assert first == second != ""
    assert agreement.settle(context=workload.describe) == held
    assert agreement.machine.mutations()[mark:] == []
