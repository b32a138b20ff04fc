"""Kubelet restarts, the node reboots, the CDI specs vanish: running pods keep their slices."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from dra.common.resources import Obj
from hack.cluster.kubelet import KubeletNode
from sim.processes import wait_for
from tests.cluster.harness.agreement import Agreement, Slice
from tests.cluster.harness.daemons import Driver, registrations
from tests.cluster.harness.pods import pod
from tests.cluster.harness.workload import Workload

SHOW = ["sh", "-c", "ls /dev/nvidia-caps | tr '\\n' ' '; echo; sleep 1000000"]
"""Prints the capability nodes in one line."""

CREATED = ["nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"]
"""What changes the hardware when one slice is made."""

CHECK_SECONDS = 75.0
"""The plugin compares every 30 s what it holds with what there is; here it is not alone."""


def lasting_pod(name: str, claims: dict[str, dict[str, str]], kubelet: KubeletNode) -> Obj:
    """A pod whose container is started again whenever it ends."""
    where: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": kubelet.name}}
    return pod(name, {"main": SHOW}, claims=claims, restartPolicy="Always", **where)


def second_start(kubelet: KubeletNode, workload: Workload, running: Obj) -> list[str]:
    """What SHOW printed, a line for each start of the container, once there were two."""
    return wait_for(
        f"second start of {running['metadata']['name']}",
        lambda: lines if len(lines := kubelet.log(running, "main").splitlines()) == 2 else None,
        timeout=90,
        context=workload.describe,
    )


def identity(held: Slice) -> tuple[int, int]:
    """What of a slice a device name stands for."""
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
