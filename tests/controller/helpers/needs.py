"""Needs of pods besides room, for the tests of the controller, and nodes in zones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.cluster.cluster import Cluster
from dra.common.resources import Obj
from tests.controller.helpers.deciding import decide
from tests.controller.helpers.objects import claim, cluster, mignode, node, pod, versioned
from tests.helpers.fields import checked

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"


def world(**zones: str) -> Cluster:
    """Nodes with one empty GPU each, in zones."""
    known = cluster()
    for name, zone in zones.items():
        labels = {HOST: name} | ({ZONE: zone} if zone else {})
        known.set_node(node(name, labels=labels))
        known.set_mignode(mignode(name))
    return known


def other(
    known: Cluster,
    name: str,
    where: str,
    labels: Mapping[str, str] | None = None,
    *,
    namespace: str = "default",
    ending: bool = False,
    **spec: Any,
) -> None:
    """A pod without claims that is bound to a node."""
    body = pod(name, nodeName=where, **spec)
    body["metadata"] |= {"labels": dict(labels or {}), "namespace": namespace}
    if ending:
        body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    known.set_pod(versioned(body))


def place(known: Cluster, labels: Mapping[str, str] | None = None, **spec: Any) -> str | None:
    """The node that is chosen for a pod of a test."""
    found = decide(known, claim("c"), labels=labels, **spec)
    return None if found is None else found.node


def selector(**labels: str) -> Obj:
    return {"matchLabels": labels}


def affine(topology: str, labels: Obj | None, *, anti: bool = False, **term: Any) -> Obj:
    """The affinity of a pod with one required term."""
    terms = [
        {"topologyKey": topology, "labelSelector": labels, **checked("V1PodAffinityTerm", term)}
    ]
    kind = "podAntiAffinity" if anti else "podAffinity"
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def spread(topology: str, labels: Obj | None, *, skew: int = 1, **more: Any) -> list[Obj]:
    constraint = {"topologyKey": topology, "labelSelector": labels, "maxSkew": skew}
    return [
        constraint
        | {"whenUnsatisfiable": "DoNotSchedule"}
        | checked("V1TopologySpreadConstraint", more)
    ]


def ports(*numbers: int, address: str = "", protocol: str = "TCP") -> list[Obj]:
    """A container that takes host ports."""
    given = {"protocol": protocol} | ({"hostIP": address} if address else {})
    listed = [{"containerPort": 80, "hostPort": n, **given} for n in numbers]
    return [{"name": "main", "image": "none", "ports": listed}]
