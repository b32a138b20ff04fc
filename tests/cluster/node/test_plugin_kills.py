"""The plugin is killed in a Prepare or an Unprepare: the next try succeeds, nothing leaks."""

from __future__ import annotations

from typing import Any

import pytest

from sim.nvml.faults import Fault
from sim.processes import Process, wait_for
from tests.cluster.harness.daemons import start_registered
from tests.cluster.harness.stage import Stage

RETRY_SECONDS = 60.0
"""Kubelet repeats a failed Prepare after up to 7.5 s here, and an Unprepare after 2 s."""

UNPREPARING = [
    ("nvmlComputeInstanceDestroy", "crash-before"),
    ("nvmlComputeInstanceDestroy", "crash-after"),
    ("nvmlGpuInstanceDestroy", "crash-after"),
]


def restart(plugin: Process) -> None:
    """What the DaemonSet's controller does once the plugin has died."""
    wait_for("end of the plugin", lambda: not plugin.running, timeout=60, context=plugin.tail)
    start_registered(plugin)


@pytest.mark.parametrize(("function", "action"), UNPREPARING)
def test_a_pod_ends_although_the_plugin_was_killed_in_an_unprepare(
    *, function: str, action: Any, stage: Stage
) -> None:
    agreement, api, workload, where = stage.agreement, stage.api, stage.workload, stage.where
    claims = {"gpu": workload.template("ended", device_class="mig-2g.10gb")}
    workload.run("ended", "stays", claims=claims, **where)
    held = agreement.settle(context=workload.describe)
    agreement.machine.inject(Fault(function=function, action=action))

    api.delete("Pod", "ended")
    restart(stage.plugin)

    wait_for(
        "deletion of the pod",
        lambda: api.find("Pod", "ended") is None and len(api.list("ResourceClaim")) == 1,
        timeout=RETRY_SECONDS,
        context=workload.describe,
    )
    left = agreement.settle(context=workload.describe)
    assert len(left) == 1
    assert left.items() <= held.items()
