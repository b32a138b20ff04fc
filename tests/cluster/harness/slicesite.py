"""Ground for pods with a slice each: a control plane, nodes that nobody serves, a controller."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra.common.resources import Obj
from dra.gpu.mignode import to_mignode
from hack.cluster.api import Api
from hack.cluster.binaries import Binaries
from hack.cluster.controlplane import MIG_CONTROLLER, USUAL, ControlPlane, Setup
from sim.processes import wait_for
from tests.cluster.harness.audit import audit
from tests.cluster.harness.ground import served_plane
from tests.cluster.harness.pods import add_fake_node, pod
from tests.cluster.harness.workload import SLEEPING, Workload
from tests.cluster.scheduling.replicas import Replicas
from tests.controller.helpers.objects import gpu, inventory

SLICE = {"resourceClaimTemplateName": "slice"}


@dataclass(slots=True)
class Site:
    """Nodes with one GPU each, a controller, and what it has written since a test began."""

    api: Api
    control_plane: ControlPlane
    workload: Workload
    mark: int = 0
    pods: list[str] = field(default_factory=list)

    def start(
        self,
        count: int,
        name: str,
        *,
        labels: Obj | None = None,
        owner: Obj | None = None,
        claims: dict[str, dict[str, str]] | None = None,
        **spec: Any,
    ) -> None:
        """Pods with a slice each, and with other ``claims``."""
        for number in range(count):
            named = {"gpu": SLICE, **(claims or {})}
            body = pod(f"{name}-{number}", SLEEPING, claims=named, **spec)
            body["metadata"]["labels"] = labels or {}
            body["metadata"]["ownerReferences"] = [owner] if owner else []
            self.pods.append(self.workload.create(body)["metadata"]["name"])

    def nodes(self, *, timeout: float = 120.0) -> list[str]:
        """The nodes of all pods, once every one is bound."""
        return [self.workload.wait_for_node(name, timeout=timeout) for name in self.pods]

    def writes(self) -> int:
        """Number of the controller's writes to statuses of claims: allocations and their ends."""
        made = audit(self.control_plane).writes(since=self.mark, user=MIG_CONTROLLER.name)
        return sum(w.resource == "resourceclaims/status" and w.status == 200 for w in made)

    def check_writes(self) -> None:
        """At most 1.2 allocations a pod."""
        made = self.writes()
        print(f"{made} allocations for {len(self.pods)} pods")  # noqa: T201 - the figure
        assert made <= 1.2 * len(self.pods)


Ground = tuple[ControlPlane, Replicas]


@contextlib.contextmanager
def ground(
    binaries: Binaries, home: Path, nodes: dict[str, Obj], *, setup: Setup = USUAL
) -> Iterator[Ground]:
    """A control plane with ``nodes``, which have labels, one GPU and four processors each."""
    logs = home.with_name(f"{home.name}-logs")
    logs.mkdir(parents=True)
    with served_plane(binaries, home, setup=setup) as control_plane:
        api = control_plane.api
        for name, labels in nodes.items():
            add_fake_node(api, name, cpu="4", labels=labels)
            body = to_mignode(inventory(name, gpu(node=name)))
            api.create({k: v for k, v in body.items() if k != "status"})
            api.patch("MigNode", name, {"status": body["status"]}, subresource="status")
        with Replicas(control_plane, logs, "alone") as replicas:
            wait_for("classes", lambda: api.find("DeviceClass", "mig-1g.5gb") is not None)
            yield control_plane, replicas


@contextlib.contextmanager
def site_on(running: Ground) -> Iterator[Site]:
    """The ground for one test, which ends with what it made."""
    control_plane, replicas = running
    workload = Workload(control_plane.api, tails=replicas.tails)
    workload.template("slice", device_class="mig-1g.5gb")
    yield Site(control_plane.api, control_plane, workload, audit(control_plane).mark())
    workload.clear()
