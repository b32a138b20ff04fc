"""Pods that need more than room are allocated where kube-scheduler takes them, without trials.

There is no kubelet: a pod that is bound has been taken. Two zones, the smaller one of two nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dra.common.resources import Obj
from dra.gpu.mignode import to_mignode
from hack.cluster import others
from hack.cluster.api import Api
from hack.cluster.binaries import Binaries
from hack.cluster.nodes import add_fake_node, pod
from hack.cluster.plane.controlplane import ControlPlane
from hack.cluster.plane.credentials import MIG_CONTROLLER
from hack.cluster.waiting import wait_for
from tests.cluster.conftest import USERS
from tests.cluster.harness.ground import make_namespace, serve_mignodes
from tests.cluster.harness.replicas import Replicas
from tests.cluster.harness.workload import SLEEPING, Workload
from tests.controller.objects import FINALIZER, gpu, inventory

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
NODES = {f"fake-need-{n:02}": "big" if n < 18 else "small" for n in range(20)}
SMALL = [name for name, zone in NODES.items() if zone == "small"]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

pytestmark = pytest.mark.timeout(300)


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
        made = self.control_plane.audit.writes(since=self.mark, user=MIG_CONTROLLER.name)
        return sum(w.resource == "resourceclaims/status" and w.status == 200 for w in made)

    def check_writes(self) -> None:
        """At most 1.2 allocations a pod."""
        made = self.writes()
        print(f"{made} allocations for {len(self.pods)} pods")  # noqa: T201 - the figure
        assert made <= 1.2 * len(self.pods)


SLICE = {"resourceClaimTemplateName": "slice"}


@pytest.fixture(scope="module")
def ground(binaries: Binaries, root: Path) -> Iterator[tuple[ControlPlane, Replicas]]:
    home, logs = root / "needs", root / "needs-logs"
    home.mkdir()
    logs.mkdir()
    with ControlPlane(binaries, home, users=USERS) as control_plane:
        api = control_plane.api
        make_namespace(api)
        serve_mignodes(api)
        for name, zone in NODES.items():
            add_fake_node(api, name, cpu="4", labels={ZONE: zone})
            body = to_mignode(inventory(name, gpu(node=name)))
            api.create({k: v for k, v in body.items() if k != "status"})
            api.patch("MigNode", name, {"status": body["status"]}, subresource="status")
        with Replicas(control_plane, logs, "alone") as replicas:
            wait_for("classes", lambda: api.find("DeviceClass", "mig-1g.5gb") is not None)
            yield control_plane, replicas


@pytest.fixture
def site(ground: tuple[ControlPlane, Replicas]) -> Iterator[Site]:
    control_plane, replicas = ground
    workload = Workload(control_plane.api, tails=replicas.tails)
    workload.template("slice", device_class="mig-1g.5gb")
    yield Site(control_plane.api, control_plane, workload, control_plane.audit.mark())
    workload.clear()


def _bound_volume(site: Site, name: str, zone: str) -> None:
    """A volume of a zone, and the claim that is bound to it."""
    expression = {"key": ZONE, "operator": "In", "values": [zone]}
    terms = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    both = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    capacity = {"capacity": {"storage": "1Gi"}, "hostPath": {"path": f"/tmp/{name}"}}
    reference = {"claimRef": {"namespace": "default", "name": name}}
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}}
    spec = {**both, **capacity, **reference, "nodeAffinity": terms}
    site.workload.create({**volume, "spec": spec})
    site.workload.create(_volume_claim(name, **both, volumeName=name))
    wait_for(
        f"binding of {name}",
        lambda: site.api.get("PersistentVolumeClaim", name)["status"].get("phase") == "Bound",
    )


def _volume_claim(name: str, **spec: Any) -> Obj:
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}}
    return {**claim, "spec": {"resources": {"requests": {"storage": "1Gi"}}, **spec}}


def _uses(name: str) -> list[Obj]:
    return [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]


def _term(topology: str, **labels: str) -> Obj:
    return {"topologyKey": topology, "labelSelector": {"matchLabels": labels}}


def test_pods_go_to_the_zone_of_their_volume(site: Site) -> None:
    _bound_volume(site, "data", "small")
    site.start(10, "zoned", volumes=_uses("data"))
    assert set(site.nodes()) <= {*SMALL}
    site.check_writes()


def test_nothing_is_allocated_while_a_volume_claim_is_missing(site: Site) -> None:
    site.start(3, "early", volumes=_uses("late"))
    wait_for(
        "event that says what is missing",
        lambda: any(
            "PersistentVolumeClaim late does not exist" in e["message"]
            for e in site.api.list("Event", fieldSelector="reason=WaitingForVolumeClaim")
        ),
        context=site.workload.describe,
    )
    assert site.writes() == 0
    _bound_volume(site, "late", "small")
    assert set(site.nodes()) <= {*SMALL}
    site.check_writes()


def test_replicas_that_shun_each_other_get_a_node_each(site: Site) -> None:
    shun = {"podAntiAffinity": {REQUIRED: [_term(HOST, app="apart")]}}
    site.start(20, "apart", labels={"app": "apart"}, affinity=shun)
    assert sorted(site.nodes()) == sorted(NODES)
    site.check_writes()


def test_pods_that_require_company_go_where_it_is(site: Site) -> None:
    leader = pod("leader", SLEEPING, nodeName=SMALL[0])
    leader["metadata"]["labels"] = {"app": "leader"}
    site.workload.create(leader)
    seek = {"podAffinity": {REQUIRED: [_term(ZONE, app="leader")]}}
    site.start(10, "follower", affinity=seek)
    assert set(site.nodes()) <= {*SMALL}
    site.check_writes()


def test_pods_are_spread_over_zones(site: Site) -> None:
    spread = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **_term(ZONE, app="spread")}
    site.start(12, "spread", labels={"app": "spread"}, topologySpreadConstraints=[spread])
    zones = [NODES[name] for name in site.nodes()]
    assert (zones.count("big"), zones.count("small")) == (6, 6)
    site.check_writes()


def test_a_host_port_is_taken_once_a_node(site: Site) -> None:
    ports = [{"containerPort": 8080, "hostPort": 8080}]
    body = pod("x", SLEEPING, claims={"gpu": SLICE})["spec"]["containers"]
    site.start(15, "port", containers=[{**body[0], "ports": ports}])
    assert len({*site.nodes()}) == 15
    site.check_writes()


def test_a_burst_finds_the_nodes_with_a_device_of_another_driver(site: Site) -> None:
    """Which these are only kube-scheduler knows; the pods have one owner, as replicas have."""
    for body in (others.device_class(), *(others.resource_slice(name, 7) for name in SMALL)):
        site.workload.create(body)
    site.workload.create(others.claim_template())
    kind = {"apiVersion": "v1", "kind": "ConfigMap"}
    owner = site.workload.create({**kind, "metadata": {"name": "owner"}})
    named = {key: owner["metadata"][key] for key in ("name", "uid")}
    source = {"resourceClaimTemplateName": others.CLASS}
    site.start(12, "tape", claims={"tape": source}, owner={**kind, **named, "controller": True})
    assert set(site.nodes()) <= {*SMALL}
    site.check_writes()


@pytest.mark.parametrize("gates", [[{"name": FINALIZER}], []], ids=["gated", "ungated"])
def test_a_pod_of_high_priority_gets_a_slice_where_others_fill_the_cpu(
    site: Site, gates: list[Obj]
) -> None:
    """Their nodes are the only ones: kube-scheduler ends some of them.

    Those that are not gated it has refused for their cpu before they are allocated, and would try
    anew after five minutes.
    """
    for name in NODES:
        site.workload.create(pod(f"filler-{name}", SLEEPING, cpu="4", nodeName=name))
    priority = "system-cluster-critical"
    site.start(2, "urgent", cpu="2", priorityClassName=priority, schedulingGates=gates)
    assert len(site.nodes(timeout=30)) == 2
    site.check_writes()
