"""Forms of answers: whole objects, and the tables that ``kubectl get`` prints."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from dra.common.resources import Obj, at

if TYPE_CHECKING:
    from sim.apiserver.requests import Request
    from sim.apiserver.resources import ResourceType
    from sim.apiserver.store import Record


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


def _ready_of(obj: Obj) -> str:
    ready = at(obj, "status", "readyReplicas", default=0)
    return f"{ready}/{obj['spec'].get('replicas', 1)}"


def _job_status(job: Obj) -> str:
    ended = (c["type"] for c in at(job, "status", "conditions"))
    return next(ended, "Suspended" if job["spec"].get("suspend") else "Running")


def _job_completions(job: Obj) -> str:
    spec = job["spec"]
    wanted = spec.get("completions", f"1 of {spec.get('parallelism', 1)}")
    return f"{at(job, 'status', 'succeeded', default=0)}/{wanted}"


def _event_object(event: Obj) -> str:
    about = event.get("involvedObject", {})
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _event_seen(event: Obj) -> str:
    series = at(event, "series", "lastObservedTime")
    times = (series, event.get("lastTimestamp"), event.get("eventTime"))
    return str(next(filter(None, times), event["metadata"].get("creationTimestamp", "")))


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
    "namespaces": (NAME, Column("Status", ".status.phase"), AGE),
    "deployments": (
        NAME,
        Column("Ready", _ready_of),
        Column("Up-to-date", ".status.updatedReplicas", type="integer", otherwise=0),
        Column("Available", ".status.availableReplicas", type="integer", otherwise=0),
        AGE,
    ),
    "replicasets": (
        NAME,
        Column("Desired", ".spec.replicas", type="integer", otherwise=1),
        Column("Current", ".status.replicas", type="integer", otherwise=0),
        Column("Ready", ".status.readyReplicas", type="integer", otherwise=0),
        AGE,
    ),
    "statefulsets": (NAME, Column("Ready", _ready_of), AGE),
    "daemonsets": (
        NAME,
        Column("Desired", ".status.desiredNumberScheduled", type="integer", otherwise=0),
        Column("Current", ".status.currentNumberScheduled", type="integer", otherwise=0),
        Column("Ready", ".status.numberReady", type="integer", otherwise=0),
        AGE,
    ),
    "jobs": (NAME, Column("Status", _job_status), Column("Completions", _job_completions), AGE),
}
"""Columns by plural; kinds that are not here show name and age."""


_META = "meta.k8s.io/v1"
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Form:
    """Form in which a client wants objects: whole, or as a table, whose rows `include` some."""

    is_table: bool = False
    include: str = "Metadata"

    @classmethod
    def of(cls, request: Request) -> Form:
        """The first form that the client accepts and this server speaks."""
        for clause in request.headers.get("accept", "").split(","):
            kind, *parameters = [part.strip() for part in clause.split(";")]
            if kind == "application/json" and {"as=Table", "v=v1"} <= set(parameters):
                return cls(is_table=True, include=request.query.get("includeObject", "Metadata"))
            if kind == "application/json" and not any(p.startswith("as=") for p in parameters):
                break
        return cls()

    def encode(self, resource: ResourceType, record: Record, now: datetime) -> bytes:
        """Writes one object."""
        if self.is_table:
            version = {"resourceVersion": record.obj["metadata"]["resourceVersion"]}
            return _encode(self.table(resource, [record.obj], now) | {"metadata": version})
        return record.raw or _encode(record.obj)

    def table(self, resource: ResourceType, objects: Sequence[Obj], now: datetime) -> Obj:
        """The Table of some objects; its metadata is the caller's to set."""
        columns = _columns(resource)
        rows: list[Obj] = [{"cells": [_cell(c, obj, now) for c in columns]} for obj in objects]
        for row, obj in zip(rows, objects, strict=True):
            if self.include == "Object":
                row["object"] = obj
            elif self.include == "Metadata":
                head = {"kind": "PartialObjectMetadata", "apiVersion": _META}
                row["object"] = head | {"metadata": obj["metadata"]}
        definitions = [
            {
                "name": column.name,
                "type": column.type,
                "format": column.format,
                "description": "",
                "priority": int(column.wide),
            }
            for column in columns
        ]
        whole: Obj = {"kind": "Table", "apiVersion": _META, "metadata": {}}
        return whole | {"columnDefinitions": definitions, "rows": rows}


def _columns(resource: ResourceType) -> tuple[Column, ...]:
    if not resource.custom:
        return BUILTIN.get(resource.plural, (NAME, AGE))
    declared = tuple(
        Column(
            column["name"],
            column["jsonPath"],
            column["type"],
            column.get("format", ""),
            otherwise=None,
            wide=column.get("priority", 0) > 0,
        )
        for column in resource.columns
    )
    return (NAME, *(declared or (AGE,)))


def _cell(column: Column, obj: Obj, now: datetime) -> Any:
    if isinstance(column.source, str):
        found = json_path(obj, column.source)
        value = ",".join(map(str, found)) if len(found) > 1 else next(iter(found), None)
    else:
        value = column.source(obj)
    if value in (None, ""):
        return column.otherwise
    if column.type == "date":
        return age(value, now)
    if column.type == "string" and not isinstance(value, str):
        return str(value).lower() if isinstance(value, bool) else str(value)
    return value


def age(since: str, now: datetime) -> str:
    """The time since a moment, as kubectl writes it: ``45s``, ``5m10s``, ``3h``, ``2d``."""
    seconds = max(0, int((now - datetime.fromisoformat(since)).total_seconds()))
    steps = ((86400, "d", 3600, "h", 8), (3600, "h", 60, "m", 8), (60, "m", 1, "s", 10))
    for size, unit, smaller, small_unit, limit in steps:
        count, rest = divmod(seconds, size)
        if (count >= 1 and size != 60) or count >= 2:  # noqa: PLR2004 - below 2 minutes in seconds
            part = rest // smaller
            more = f"{part}{small_unit}" if count < limit and part else ""
            return f"{count}{unit}{more}"
    return f"{seconds}s"


_STEP = re.compile(
    r"\.([A-Za-z_][\w-]*|\*)|\[(\*|-?\d+)\]|\['([^']+)'\]|\[\?\(@\.([\w.]+)\s*==\s*[\"']([^\"']*)[\"']\)\]"
)


def json_path(obj: Obj, path: str) -> list[Any]:
    """The values that a column's path finds: fields, indexes, ``[*]`` and ``[?(@.a=="b")]``."""
    found: list[Any] = [obj]
    for name, index, quoted, field, wanted in _STEP.findall(path.replace("\\.", "\0")):
        key = (name or quoted).replace("\0", ".")
        following: list[Any] = []
        for value in found:
            if field and isinstance(value, list):
                following += [item for item in value if str(item.get(field, "")) == wanted]
            elif index == "*" or key == "*":
                inner = value.values() if isinstance(value, dict) else value
                following += list(inner or [])
            elif index and isinstance(value, list) and -len(value) <= int(index) < len(value):
                following.append(value[int(index)])
            elif key and isinstance(value, dict) and key in value:
                following.append(value[key])
        found = following
    return [value for value in found if value is not None]
