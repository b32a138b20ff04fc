"""Kubelet has lost its list of claims: it unprepares none of the pods that ran before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hack.cluster.api import Api
from hack.cluster.kubelet import KubeletNode
from sim.processes import Process
from tests.cluster.harness.agreement import Agreement
from tests.cluster.harness.daemons import Driver, start_registered
from tests.cluster.harness.workload import Workload

GRACE = ("--forgotten-after", "15")

GONE_SECONDS = 90.0
"""The plugin asks for its claims at its start and then, while one has ended, every 30 s."""


@pytest.fixture
def plugin(driver: Driver, kubelet: KubeletNode) -> Iterator[Process]:
    """A plugin with a short grace."""
    with driver.in_place(kubelet.name, *GRACE) as plugin:
        yield plugin


@pytest.mark.timeout(300)
def test_a_claim_that_kubelet_has_forgotten_leaves_the_node_once_it_has_ended(
    *,
    agreement: Agreement,
    api: Api,
    kubelet: KubeletNode,
    plugin: Process,
    workload: Workload,
    where: dict[str, Any],
) -> None:
    claims = {"gpu": workload.template("forgotten", device_class="mig-1g.5gb")}
    workload.run("forced", "stays", claims=claims, **where)
    held = agreement.settle(context=workload.describe)
    forced, stays = workload.claim_of("forced"), workload.claim_of("stays")
    assert forced is not None
    assert stays is not None

    for process in (plugin, kubelet.process):
        process.kill()
    api.delete("Pod", "forced", grace=0)
    workload.wait_for_ending(forced)
    kubelet.lose_claims()
    kubelet.process.start()
    start_registered(plugin)
    workload.wait_for_end(forced, timeout=GONE_SECONDS)
    left = agreement.settle(context=workload.describe)
    assert len(left) == 1
    assert left.items() <= held.items()

    api.delete("Pod", "stays")
    workload.wait_for_ending(stays)
    assert len(agreement.machine.gpu().gpu_instances) == 2, "kubelet knew of it after all"
    plugin.stop()
    start_registered(plugin)  # it would ask within 300 s
    workload.wait_for_end(stays, timeout=GONE_SECONDS)
    assert agreement.settle(context=workload.describe) == {}
