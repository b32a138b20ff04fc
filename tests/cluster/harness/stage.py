"""The node that runs pods, with all that a test of it works with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hack.cluster.api import Api
    from hack.cluster.kubelet import KubeletNode
    from sim.processes import Process
    from tests.cluster.harness.agreement import Agreement
    from tests.cluster.harness.daemons import Driver
    from tests.cluster.harness.workload import Workload


@dataclass(frozen=True, slots=True)
class Stage:
    """Fixtures of those names; `where` is the part of a pod's spec that puts it on the node."""

    agreement: Agreement
    api: Api
    driver: Driver
    kubelet: KubeletNode
    workload: Workload
    where: dict[str, Any]

    @property
    def plugin(self) -> Process:
        """The node's plugin."""
        return self.driver.plugins[self.kubelet.name]
