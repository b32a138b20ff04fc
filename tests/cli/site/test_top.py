"""``kubectl mig top``: who has how much, for how long."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from dra.common.resources import DEVICE_CLASSES, RESOURCE_CLAIMS
from tests.cli.conftest import Mig
from tests.cli.world import World
from tests.controller.helpers.objects import gpu, instance


def holds(world: World, name: str, device: str, *, hours: float) -> None:
    """A running pod that has had a device for so long."""
    claim = world.hold(f"c-{name}", "node-a", device)
    since = datetime.now(UTC) - timedelta(hours=hours)
    allocation = claim["status"]["allocation"]
    allocation["allocationTimestamp"] = since.strftime("%Y-%m-%dT%H:%M:%SZ")
    world.set_status(RESOURCE_CLAIMS, claim, {})
    world.set_status(RESOURCE_CLAIMS, claim, {"allocation": allocation})
    world.add_pod(name, f"c-{name}", running=True, nodeName="node-a")


def columns(line: str) -> list[str]:
    return line.split()


def test_pods_with_most_memory_come_first_and_hours_count_parts_of_gpus(
    world: World, mig: Mig
) -> None:
    world.add_node("node-a", gpu(0, "node-a"), gpu(1, "node-a"), gpu(2, "node-a", mig=False))
    holds(world, "small", "gpu-0-mig-1g5gb-19-0", hours=8)
    holds(world, "half", "gpu-1-mig-3g20gb-9-4", hours=3)
    holds(world, "whole", "gpu-2", hours=0.5)
    lines = mig("top").out.splitlines()
    assert columns(lines[0]) == ["NAMESPACE", "POD", "DEVICES", "MEMORY", "GPUS", "GPU", "HOURS"]
    assert [columns(line) for line in lines[1:]] == [
        ["default", "whole", "1", "40.0Gi", "1.00", "0.5"],
        ["default", "half", "1", "19.5Gi", "0.50", "1.5"],
        ["default", "small", "1", "4.8Gi", "0.12", "1.0"],
    ]


def test_all_namespaces_are_summed_up(world: World, mig: Mig) -> None:
    world.add_node("node-a", gpu(0, "node-a"))
    holds(world, "one", "gpu-0-mig-1g5gb-19-0", hours=1)
    holds(world, "two", "gpu-0-mig-1g5gb-19-1", hours=1)
    found = mig("top", "-A", "-o", "json").json
    [space] = found["namespaces"]
    assert (space["namespace"], space["devices"], space["memoryMiB"]) == ("default", 2, 9728)
    assert round(space["gpuHours"], 2) == 0.25
    assert [p["pod"] for p in found["pods"]] == ["one", "two"]
    assert "two" in mig("top", "-A").out


def test_a_namespace_without_devices_says_so(world: World, mig: Mig) -> None:
    world.add_node("node-a", gpu(0, "node-a"))
    holds(world, "one", "gpu-0-mig-1g5gb-19-0", hours=1)
    assert mig("top", "-n", "kube-system").out == "no pod of kube-system has a device\n"


def test_what_a_namespace_holds_stands_beside_what_it_may_hold(world: World, mig: Mig) -> None:
    world.add_node("node-a", gpu(0, "node-a"))
    world.add_classes("1g.5gb")
    limits = {"mig.dra.dev/devices-per-namespace": "3", "mig.dra.dev/memory-per-namespace": "20Gi"}
    world.api.patch(DEVICE_CLASSES, "mig.dra.dev", {"metadata": {"annotations": limits}})
    holds(world, "one", "gpu-0-mig-1g5gb-19-0", hours=1)
    holds(world, "two", "gpu-0-mig-1g5gb-19-1", hours=1)
    row = ["default", "mig.dra.dev", "2", "of", "3", "10.0Gi", "of", "20.0Gi"]
    for more in ((), ("-A",)):
        assert row in [columns(line) for line in mig("top", *more).out.splitlines()]
    none = [columns(line) for line in mig("top", "-n", "kube-system").out.splitlines()]
    assert ["kube-system", "mig.dra.dev", "0", "of", "3", "0.0Gi", "of", "20.0Gi"] in none
    [held] = mig("top", "-o", "json").json["quotas"]
    assert (held["devices"], held["mostDevices"], held["mostMemoryMiB"]) == (2, 3, 20480)
    gone = instance("2g.10gb", 4, uid="uid-gone")
    world.replace_gpus("node-a", gpu(0, "node-a", instances=(gone,)))
    [held] = mig("top", "-o", "json").json["quotas"]
    assert (held["devices"], held["memoryMiB"]) == (3, 20480), "what its node still has counts"
