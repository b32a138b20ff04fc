"""Columns of the built-in kinds, as the server prints them: a path where one is enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dra.common.resources import Obj, at

_ROLE = "node-role.kubernetes.io/"


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a table: ``source`` is a JSON path or a function of the object.

    ``otherwise`` stands for a value that is not there; ``wide`` shows it with ``-o wide`` only.
    """

    name: str
    source: str | Callable[[Obj], Any]
    type: str = "string"
    format: str = ""
    otherwise: Any = "<none>"
    wide: bool = False


def _pod_ready(pod: Obj) -> str:
    states = at(pod, "status", "containerStatuses")
    return f"{sum(bool(s.get('ready')) for s in states)}/{len(pod['spec']['containers'])}"


def _pod_restarts(pod: Obj) -> str:
    states = at(pod, "status", "containerStatuses")
    return str(sum(state.get("restartCount", 0) for state in states))


def _pod_status(pod: Obj) -> str:
    status = pod.get("status", {})
    phase: str = status.get("reason") or status.get("phase", "")
    for each in status.get("containerStatuses", []):
        state = each.get("state", {})
        words = [state.get(name, {}).get("reason") for name in ("waiting", "terminated")]
        phase = next(filter(None, words), phase)
    gated = any(c.get("reason") == "SchedulingGated" for c in status.get("conditions", []))
    if gated and not pod["spec"].get("nodeName"):
        phase = "SchedulingGated"
    return "Terminating" if "deletionTimestamp" in pod["metadata"] else phase


def _node_status(node: Obj) -> str:
    conditions = {c["type"]: c["status"] for c in at(node, "status", "conditions")}
    word = {"True": "Ready", None: "Unknown"}.get(conditions.get("Ready"), "NotReady")
    return f"{word},SchedulingDisabled" if node["spec"].get("unschedulable") else word


def _node_roles(node: Obj) -> str:
    labels = node["metadata"].get("labels", {})
    return ",".join(sorted(k.removeprefix(_ROLE) for k in labels if k.startswith(_ROLE)))


def _claim_state(claim: Obj) -> str:
    status = claim.get("status", {})
    states = ["deleted"] if "deletionTimestamp" in claim["metadata"] else []
    states.append("allocated" if "allocation" in status else "pending")
    return ",".join([*states, "reserved"] if status.get("reservedFor") else states)


def _event_object(event: Obj) -> str:
    about = event.get("involvedObject", {})
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _event_seen(event: Obj) -> str:
    series = at(event, "series", "lastObservedTime")
    times = (series, event.get("lastTimestamp"), event.get("eventTime"))
    return str(next(filter(None, times), event["metadata"].get("creationTimestamp", "")))


def _data_count(obj: Obj) -> str:
    return str(len(obj.get("data", {})) + len(obj.get("binaryData", {})))


NAME = Column("Name", ".metadata.name", format="name")
AGE = Column("Age", ".metadata.creationTimestamp", type="date", otherwise="<unknown>")

BUILTIN: dict[str, tuple[Column, ...]] = {
    "pods": (
        NAME,
        Column("Ready", _pod_ready),
        Column("Status", _pod_status),
        Column("Restarts", _pod_restarts),
        AGE,
        Column("IP", ".status.podIP", wide=True),
        Column("Node", ".spec.nodeName", wide=True),
        Column("Nominated Node", ".status.nominatedNodeName", wide=True),
        Column("Readiness Gates", ".spec.readinessGates[*].conditionType", wide=True),
    ),
    "nodes": (
        NAME,
        Column("Status", _node_status),
        Column("Roles", _node_roles),
        AGE,
        Column("Version", ".status.nodeInfo.kubeletVersion"),
        Column("Internal-IP", '.status.addresses[?(@.type=="InternalIP")].address', wide=True),
        Column("OS-Image", ".status.nodeInfo.osImage", wide=True),
    ),
    "resourceclaims": (NAME, Column("State", _claim_state), AGE),
    "resourceslices": (
        NAME,
        Column("Node", ".spec.nodeName", otherwise="<unset>"),
        Column("Driver", ".spec.driver"),
        Column("Pool", ".spec.pool.name"),
        AGE,
    ),
    "events": (
        Column("Last Seen", _event_seen, type="date"),
        Column("Type", ".type"),
        Column("Reason", ".reason"),
        Column("Object", _event_object),
        Column("Message", ".message", otherwise=""),
        Column("Name", ".metadata.name", format="name", wide=True),
    ),
    "leases": (NAME, Column("Holder", ".spec.holderIdentity", otherwise=""), AGE),
    "namespaces": (NAME, Column("Status", ".status.phase"), AGE),
    "configmaps": (NAME, Column("Data", _data_count), AGE),
    "customresourcedefinitions": (NAME, Column("Created At", ".metadata.creationTimestamp")),
}
"""Columns by plural; kinds that are not here show name and age."""
