"""Pods that need more than room, on a real control plane.

A row for each need: how many pods there were, how many were bound and after how long, and how often
the controller wrote the status of a claim for each: once where it knows what kube-scheduler takes.
There is no kubelet: a pod that is bound has been taken. The zone ``near`` is a twentieth of the
nodes. The simulator's scheduler judges none of these needs, so the binaries are needed
(``KUBEBUILDER_ASSETS``).
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml

from dra.common.resources import Obj
from dra.gpu.mignode import to_mignode
from dra.gpu.names import class_name
from hack.bench.control import objects
from hack.bench.fleets.fleet import geometry
from hack.cluster.api import Api, ApiError
from hack.cluster.binaries import Binaries
from hack.cluster.driver.chart import NAMESPACE, REPOSITORY
from hack.cluster.errors import ClusterError
from hack.cluster.machine.processes import Process
from hack.cluster.nodes import add_fake_node, pod
from hack.cluster.plane import credentials
from hack.cluster.plane.controlplane import ControlPlane
from hack.cluster.waiting import wait_for

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_CONTAINERS = {"main": ["sleep", "1000000"]}
_SLICE = {"gpu": {"resourceClaimTemplateName": "slice"}}
_CPU = 8
_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Need:
    """A row: pods of a kind, and what is there before them."""

    name: str
    pods: Callable[[int], list[Obj]]
    before: Callable[[Api, list[str]], None] = lambda _api, _nodes: None


def _pods(name: str, count: int, labels: Obj | None = None, **spec: Any) -> list[Obj]:
    bodies = [pod(f"{name}-{n}", _CONTAINERS, claims=_SLICE, **spec) for n in range(count)]
    for body in bodies:
        body["metadata"]["labels"] = labels or {}
    return bodies


def _term(topology: str, app: str) -> Obj:
    return {"topologyKey": topology, "labelSelector": {"matchLabels": {"app": app}}}


def _zoned(count: int) -> list[Obj]:
    uses = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    return _pods("zoned", count, volumes=uses)


def _apart(count: int) -> list[Obj]:
    shun = {"podAntiAffinity": {_REQUIRED: [_term(HOST, "apart")]}}
    return _pods("apart", count, {"app": "apart"}, affinity=shun)


def _company(count: int) -> list[Obj]:
    seek = {"podAffinity": {_REQUIRED: [_term(ZONE, "leader")]}}
    return _pods("company", count, affinity=seek)


def _spread(count: int) -> list[Obj]:
    even = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **_term(ZONE, "spread")}
    return _pods("spread", count, {"app": "spread"}, topologySpreadConstraints=[even])


def _ports(count: int) -> list[Obj]:
    bodies = _pods("port", count)
    for body in bodies:
        body["spec"]["containers"][0]["ports"] = [{"containerPort": 8080, "hostPort": 8080}]
    return bodies


def _urgent(count: int) -> list[Obj]:
    return _pods("urgent", count, cpu="2", priorityClassName="system-cluster-critical")


def _volume(api: Api, _nodes: list[str]) -> None:
    """A volume of the zone ``near``, and the claim that is bound to it."""
    where = {"key": ZONE, "operator": "In", "values": ["near"]}
    both = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        **both,
        "capacity": {"storage": "1Gi"},
        "hostPath": {"path": "/tmp/data"},  # noqa: S108 - no kubelet, nothing is mounted
        "claimRef": {"namespace": "default", "name": "data"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [where]}]}},
    }
    claim = {**both, "volumeName": "data", "resources": {"requests": {"storage": "1Gi"}}}
    for kind, spec in (("PersistentVolume", volume), ("PersistentVolumeClaim", claim)):
        api.create({"apiVersion": "v1", "kind": kind, "metadata": {"name": "data"}, "spec": spec})
    wait_for(
        "bound volume",
        lambda: api.get("PersistentVolumeClaim", "data")["status"].get("phase") == "Bound",
    )


def _leader(api: Api, nodes: list[str]) -> None:
    body = pod("leader", _CONTAINERS, nodeName=nodes[-1])
    body["metadata"]["labels"] = {"app": "leader"}
    api.create(body)


def _fillers(api: Api, nodes: list[str]) -> None:
    for node in nodes:
        api.create(pod(f"filler-{node}", _CONTAINERS, cpu=str(_CPU), nodeName=node))


NEEDS = (
    Need("zone of a volume", _zoned, _volume),
    Need("anti-affinity", _apart),
    Need("affinity", _company, _leader),
    Need("spread over zones", _spread),
    Need("host port", _ports),
    Need("high priority", _urgent, _fillers),
)


@contextmanager
def _site(control_plane: ControlPlane, nodes: int) -> Iterator[list[str]]:
    """Nodes with eight GPUs each, and a controller that leads; yields their names."""
    api, shape = control_plane.api, geometry("A100-SXM4-80GB")
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    api.create(yaml.safe_load((REPOSITORY / "api/crds/mignodes.yaml").read_text()))

    def served() -> bool:
        with suppress(ApiError):
            return api.list("MigNode") == []
        return False

    wait_for("MigNode", served)
    names = [f"fake-{n:03}" for n in range(nodes)]
    for number, name in enumerate(names):
        zone = "near" if number >= nodes - max(1, nodes // 20) else "far"
        add_fake_node(api, name, cpu=str(_CPU), labels={ZONE: zone})
        body = to_mignode(objects.inventory(name, shape))
        api.create({k: v for k, v in body.items() if k != "status"})
        api.patch("MigNode", name, {"status": body["status"]}, subresource="status")
    small = shape.profiles[0].name
    template = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    spec = {"spec": objects.claim_spec(small)}
    api.create({**template, "metadata": {"name": "slice"}, "spec": spec})
    kubeconfig = str(control_plane.kubeconfig(credentials.MIG_CONTROLLER))
    command = [sys.executable, "-m", "controller", "--kubeconfig", kubeconfig]
    process = Process("controller", command, logs=control_plane.logs)
    process.start()
    try:
        wait_for("classes", lambda: api.find("DeviceClass", class_name(small)), timeout=60)
        yield names
    finally:
        process.stop()


def _row(control_plane: ControlPlane, need: Need, names: list[str], *, pods: int) -> str:
    api, mark = control_plane.api, control_plane.audit.mark()
    need.before(api, names)
    bodies = need.pods(pods)
    started = time.monotonic()
    for body in bodies:
        api.create(body)
    wanted = {body["metadata"]["name"] for body in bodies}

    def bound() -> set[str]:
        found = api.list("Pod")
        return {p["metadata"]["name"] for p in found if p["spec"].get("nodeName")} & wanted

    with suppress(ClusterError):
        wait_for("bound pods", lambda: bound() == wanted, timeout=_PATIENCE_SECONDS)
    took, served = time.monotonic() - started, len(bound())
    writes = control_plane.audit.writes(since=mark, user=credentials.MIG_CONTROLLER.name)
    made = sum(w.resource == "resourceclaims/status" and w.status < 300 for w in writes)  # noqa: PLR2004
    for body in api.list("Pod"):
        api.delete("Pod", body["metadata"]["name"], grace=0)
    wait_for("end of the claims", lambda: not api.list("ResourceClaim"), timeout=60)
    return f"{need.name:<20}{pods:>5}{served:>7}{took:>9.1f}{made:>8}{made / pods:>9.2f}"


def run(binaries: Binaries, missing: str, *, nodes: int, pods: int) -> None:
    """Print one table; ``missing`` says why there can be none.

    Raises:
        ClickException: binaries are missing.
    """
    if missing:
        raise click.ClickException(missing)
    with tempfile.TemporaryDirectory(prefix="mighostile", dir="/tmp") as folder:
        users = (credentials.MIG_CONTROLLER,)
        with (
            ControlPlane(binaries, Path(folder), users=users) as control_plane,
            _site(control_plane, nodes) as names,
        ):
            print(f"{'need':<20} pods  bound  seconds  writes  per pod")
            for need in NEEDS:
                print(_row(control_plane, need, names, pods=pods), flush=True)
