"""Whether a pod can run on a node, as far as can be told without being kube-scheduler.

What is not checked here (volumes, spreading, affinity between pods) the scheduler answers by
taking the allocation back.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from dra.nodeselector import matches_terms
from dra.podneeds import Amounts, PodNeeds, amounts, tolerates

_BLOCKING = ("NoSchedule", "NoExecute")
_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_DELEGATED = "deviceclass.resource.kubernetes.io/"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The part of a Node that decides what may run there. Equal facts fit the same pods."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    allocatable: Amounts = field(default_factory=dict)
    taints: tuple[Mapping[str, Any], ...] = ()
    unschedulable: bool = False
    ready: bool = True


def read_node(obj: Mapping[str, Any]) -> NodeFacts:
    """The facts of a Node; one that never reported readiness counts as ready."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    ready = [c["status"] for c in status.get("conditions") or () if c["type"] == "Ready"]
    taints = [
        {"key": t["key"], "value": t.get("value", ""), "effect": t["effect"]}
        for t in spec.get("taints") or ()
        if t["effect"] in _BLOCKING
    ]
    return NodeFacts(
        name=obj["metadata"]["name"],
        labels=obj["metadata"].get("labels") or {},
        allocatable=amounts(status.get("allocatable") or {}),
        taints=tuple(taints),
        unschedulable=bool(spec.get("unschedulable")),
        ready=ready in ([], ["True"]),
    )


def misfit(
    pod: PodNeeds, node: NodeFacts, used: Amounts, *, delegated: AbstractSet[str] = frozenset()
) -> str:
    """Why ``pod`` cannot run on ``node`` in a few words; empty when it can.

    ``used`` is what the pods there take already. ``delegated`` are extended resources that a
    DeviceClass serves: a node need not have them.
    """
    if not node.ready:
        return "node not ready"
    if node.unschedulable and not tolerates(pod.tolerations, _UNSCHEDULABLE):
        return "node unschedulable"
    for taint in node.taints:
        if not tolerates(pod.tolerations, taint):
            return f"untolerated taint {taint['key']}={taint['value']}:{taint['effect']}"
    if any(node.labels.get(key) != value for key, value in pod.node_selector.items()):
        return "nodeSelector does not match"
    if pod.affinity_terms is not None and not matches_terms(
        pod.affinity_terms, node.labels, node.name
    ):
        return "node affinity does not match"
    short = [
        name
        for name, wanted in pod.requests.items()
        if wanted > 0
        and wanted > node.allocatable.get(name, 0) - used.get(name, 0)
        and not _is_delegated(name, node, delegated)
    ]
    return f"insufficient {', '.join(sorted(short))}" if short else ""


def _is_delegated(name: str, node: NodeFacts, delegated: AbstractSet[str]) -> bool:
    """A device plugin's allocatable, where it is more than nothing, wins over a DeviceClass."""
    served = name in delegated or name.startswith(_DELEGATED)
    return served and not node.allocatable.get(name)
