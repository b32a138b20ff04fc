"""Needs of pods beside room, each with the pods that have it and with what is there before them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from dra.common.resources import Obj
from hack.cluster.api import Api
from hack.cluster.driver import others
from hack.cluster.nodes import pod
from hack.cluster.waiting import wait_for

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_CONTAINERS = {"main": ["sleep", "1000000"]}
_SLICE = {"gpu": {"resourceClaimTemplateName": "slice"}}
NODE_CPU = 8


@dataclass(frozen=True, slots=True)
class Need:
    """A row: pods of a kind, and what is there before them.

    ``owned``: they have one owner, as those of a ReplicaSet have, and learn from each other.
    """

    name: str
    pods: Callable[[int], list[Obj]]
    before: Callable[[Api, list[str]], None] = lambda _api, _nodes: None
    owned: bool = False


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


def _with_tapes(count: int) -> list[Obj]:
    claims = {**_SLICE, "tape": {"resourceClaimTemplateName": others.CLASS}}
    return [pod(f"tape-{n}", _CONTAINERS, claims=claims) for n in range(count)]


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
        api.create(pod(f"filler-{node}", _CONTAINERS, cpu=str(NODE_CPU), nodeName=node))


def _tapes(api: Api, nodes: list[str], *, each: int) -> None:
    """Devices of another driver in the zone ``near``, so many for each node."""
    for body in (others.device_class(), others.claim_template()):
        if api.find(body["kind"], others.CLASS) is None:
            api.create(body)
    for name in nodes:
        if api.get("Node", name)["metadata"]["labels"][ZONE] != "near":
            continue
        body = others.resource_slice(name, each)
        api.delete("ResourceSlice", body["metadata"]["name"])
        api.create(body)


NEEDS = (
    Need("zone of a volume", _zoned, _volume),
    Need("anti-affinity", _apart),
    Need("affinity", _company, _leader),
    Need("spread over zones", _spread),
    Need("host port", _ports),
    Need("high priority", _urgent, _fillers),
    Need("other driver", _with_tapes, partial(_tapes, each=20), owned=True),
    Need("other driver, few", _with_tapes, partial(_tapes, each=12), owned=True),
)
