"""GPU instances of released slices that wait for the next pod of their namespace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dra.common.resources import Obj
from hack.cluster.api import Api
from hack.cluster.kubelet import KubeletNode
from sim.processes import Process
from tests.cluster.harness.agreement import Agreement
from tests.cluster.harness.daemons import Driver, start_registered
from tests.cluster.harness.workload import Workload

KEEPING = ("--idle-seconds", "3600")
ALL_BUT_THE_FOREIGN = 6


@pytest.fixture
def plugin(driver: Driver, kubelet: KubeletNode) -> Iterator[Process]:
    """A plugin that keeps what is released, in the place of the usual one."""
    with driver.in_place(kubelet.name, *KEEPING) as plugin:
        yield plugin


def creations(agreement: Agreement) -> int:
    return sum("CreateGpuInstance" in call.function for call in agreement.machine.mutations())


def idle(api: Api, node: str) -> list[Obj]:
    (gpu,) = api.get("MigNode", node)["status"]["gpus"]
    return list(gpu.get("idle", ()))


@pytest.mark.timeout(300)
def test_the_next_pod_gets_what_was_kept_and_who_needs_the_room_gets_that(
    *,
    agreement: Agreement,
    api: Api,
    kubelet: KubeletNode,
    plugin: Process,
    workload: Workload,
    where: dict[str, Any],
) -> None:
    claims = {"gpu": workload.template("slice", device_class="mig-2g.10gb")}
    workload.run("first", claims=claims, **where)
    before = creations(agreement)
    first = workload.claim_of("first")
    assert first is not None
    api.delete("Pod", "first")
    workload.wait_for_end(first, timeout=60)
    (kept,) = idle(api, kubelet.name)
    assert kept["namespace"] == "default"

    workload.run("second", claims=claims, **where)
    assert creations(agreement) == before, "a GPU instance was made"
    assert len(agreement.settle(context=workload.describe)) == 1
    second = workload.claim_of("second")
    assert second is not None
    api.delete("Pod", "second")
    workload.wait_for_end(second, timeout=60)
    assert idle(api, kubelet.name) == [kept]

    small = workload.template("small", device_class="mig-1g.5gb", count=ALL_BUT_THE_FOREIGN)
    workload.run("third", claims={"gpu": small}, **where)
    assert len(agreement.settle(context=workload.describe)) == ALL_BUT_THE_FOREIGN
    third = workload.claim_of("third")
    assert third is not None
    api.delete("Pod", "third")
    workload.wait_for_end(third, timeout=60)
    assert len(idle(api, kubelet.name)) == ALL_BUT_THE_FOREIGN
    plugin.stop(grace=30)  # which gives them up
    assert len(agreement.machine.gpu().gpu_instances) == 1
    start_registered(plugin)
