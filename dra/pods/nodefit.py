"""Fit of a pod on a node, by the node's own fields and by the resources that are taken.

Other rules are in ``dra.pods.rules``.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from dra.common.parts import shape
from dra.common.resources import BLOCKING_EFFECTS, Obj, at, tolerates
from dra.gpu.inventory import HOST_USERS_ONLY
from dra.pods.pods import Amounts, PodNeeds, amounts
from dra.pods.selectors import matches_terms

_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints by which Kubernetes tells that a node is not ready."""

_DELEGATED = "deviceclass.resource.kubernetes.io/"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The part of a Node that decides what may run there. Equal facts fit the same pods."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    allocatable: Amounts = field(default_factory=dict)
    taints: tuple[Mapping[str, Any], ...] = ()
    unschedulable: bool = False


_NODE = msgspec.json.Decoder(
    shape(
        {
            "metadata": {
                "name": str,
                "uid": str,
                "resourceVersion": str,
                "labels": dict[str, str],
            },
            "spec": {"taints": [{"key": str, "value": str, "effect": str}], "unschedulable": bool},
            "status": {"allocatable": dict[str, Any]},
        }
    )
)


def keep_node(raw: msgspec.Raw) -> Obj:
    """The part of a Node that :func:`read_node` reads."""
    node: Obj = _NODE.decode(raw)
    return node


def read_node(obj: Mapping[str, Any]) -> NodeFacts:
    """The facts of a Node. Its taints are read instead of its conditions, as by kube-scheduler."""
    taints = [
        {"key": t["key"], "value": t.get("value", ""), "effect": t["effect"]}
        for t in at(obj, "spec", "taints")
        if t["effect"] in BLOCKING_EFFECTS
    ]
    return NodeFacts(
        name=obj["metadata"]["name"],
        labels=at(obj, "metadata", "labels", default={}),
        allocatable=amounts(at(obj, "status", "allocatable", default={})),
        taints=tuple(taints),
        unschedulable=bool(at(obj, "spec", "unschedulable")),
    )


class MisfitReason(StrEnum):
    """Reasons why a pod cannot run on a node. Programs read them: keep them."""

    NOT_READY = "NodeNotReady"
    UNSCHEDULABLE = "NodeUnschedulable"
    TAINTED = "UntoleratedTaint"
    SELECTOR = "NodeSelectorMismatch"
    AFFINITY = "NodeAffinityMismatch"
    RESOURCES = "InsufficientResources"
    NO_NODE = "NoSuchNode"
    BOUND = "BoundElsewhere"
    ELSEWHERE = "AllocatedElsewhere"
    LEFT_OUT = "NodeLeftOut"
    SHARING = "SharingNotOffered"
    VOLUME = "VolumeElsewhere"
    HOST_PORT = "HostPortTaken"
    POD_AFFINITY = "PodAffinityMismatch"
    POD_ANTI_AFFINITY = "PodAntiAffinityMismatch"
    SHUNNED = "ExistingPodAntiAffinity"
    SPREAD = "TopologySpreadMismatch"
    HOST_USERS = HOST_USERS_ONLY
    BY_SCHEDULER = "AllocatedByScheduler"


@dataclass(frozen=True, slots=True)
class Misfit:
    """Misfit of a pod and a node: the reason for programs, and a few words for people."""

    reason: MisfitReason
    message: str


def find_misfit(
    pod: PodNeeds, node: NodeFacts, used: Amounts, *, delegated: AbstractSet[str] = frozenset()
) -> Misfit | None:
    """Misfit of ``pod`` and ``node``; None when the pod can run there.

    ``used`` is what the pods there take already. ``delegated`` are extended resources that a
    DeviceClass serves: a node need not have them.
    """
    barrier = find_barrier(pod, node)
    if barrier is not None:
        return barrier
    short = find_short(pod, node, used, delegated=delegated)
    if short:
        return Misfit(MisfitReason.RESOURCES, f"insufficient {', '.join(sorted(short))}")
    return None


def find_barrier(pod: PodNeeds, node: NodeFacts) -> Misfit | None:
    """Misfit of ``pod`` and ``node`` whatever becomes free there; None when there is none."""
    # Most nodes have no taints and most pods no selectors: a call costs more than to look.
    if (node.unschedulable or node.taints) and (barred := _barred(pod, node)) is not None:
        return barred
    if pod.node_selector or pod.affinity_terms is not None:
        return find_deselection(pod, node)
    return None


def find_short(
    pod: PodNeeds, node: NodeFacts, used: Amounts, *, delegated: AbstractSet[str] = frozenset()
) -> list[str]:
    """Resources of which ``node`` has not enough left; arguments as of ``find_misfit``."""
    allocatable = node.allocatable
    return [
        name
        for name, wanted in pod.requests.items()
        if wanted > allocatable.get(name, 0) - used.get(name, 0)
        and wanted > 0
        and not _is_delegated(name, node, delegated)
    ]


def _barred(pod: PodNeeds, node: NodeFacts) -> Misfit | None:
    """The first misfit by the node's state and taints; None if neither bars the pod."""
    if node.unschedulable and not tolerates(pod.tolerations, _UNSCHEDULABLE):
        return Misfit(MisfitReason.UNSCHEDULABLE, "node unschedulable")
    for taint in node.taints:
        if not tolerates(pod.tolerations, taint):
            text = f"untolerated taint {taint['key']}={taint['value']}:{taint['effect']}"
            if taint["key"] in NOT_READY:
                return Misfit(MisfitReason.NOT_READY, f"node not ready: {text}")
            return Misfit(MisfitReason.TAINTED, text)
    return None


def find_deselection(pod: PodNeeds, node: NodeFacts) -> Misfit | None:
    """The first misfit by the pod's selectors; None if the node matches all."""
    for key, value in pod.node_selector.items():
        if node.labels.get(key) != value:
            return Misfit(MisfitReason.SELECTOR, f"nodeSelector {key}={value} does not match")
    if pod.affinity_terms is not None and not matches_terms(
        pod.affinity_terms, node.labels, node.name
    ):
        return Misfit(MisfitReason.AFFINITY, "node affinity does not match")
    return None


def _is_delegated(name: str, node: NodeFacts, delegated: AbstractSet[str]) -> bool:
    """True if a DeviceClass serves ``name`` on the node, and no device plugin offers some there."""
    served = name in delegated or name.startswith(_DELEGATED)
    return served and not node.allocatable.get(name)
