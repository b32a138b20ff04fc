"""Tables: what `kubectl get` prints, one column set for each kind."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sim.apiserver.schema.resources import ResourceType

Obj = dict[str, Any]
Cell = Any

_NAME = ("Name", "string", "name", 0)
_AGE = ("Age", "string", "", 0)
_STATUS_GROUP = "node-role.kubernetes.io/"


def age(since: str, now: datetime) -> str:
    """Write how long ago a moment was, as kubectl does: `45s`, `5m10s`, `3h`, `2d`."""
    if not since:
        return "<unknown>"
    seconds = max(0, int((now - datetime.fromisoformat(since)).total_seconds()))
    steps = ((86400, "d", 3600, "h", 8), (3600, "h", 60, "m", 8), (60, "m", 1, "s", 10))
    for size, unit, smaller, small_unit, limit in steps:
        count, rest = divmod(seconds, size)
        if (count >= 1 and size != 60) or count >= 2:  # noqa: PLR2004 - below 2 minutes in seconds
            part = rest // smaller
            return (
                f"{count}{unit}{part}{small_unit}" if count < limit and part else f"{count}{unit}"
            )
    return f"{seconds}s"


def table(
    resource: ResourceType, objects: Sequence[Obj], now: datetime, *, include: str = "Metadata"
) -> Obj:
    """Give the Table of some objects; the list's metadata is the caller's to set."""
    columns, row = _columns(resource)
    rows = []
    for obj in objects:
        entry: Obj = {"cells": row(obj, now)}
        if include == "Object":
            entry["object"] = obj
        elif include != "None":
            entry["object"] = {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": obj["metadata"],
            }
        rows.append(entry)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {},
        "columnDefinitions": [
            {"name": name, "type": kind, "format": fmt, "description": "", "priority": priority}
            for name, kind, fmt, priority in columns
        ],
        "rows": rows,
    }


Columns = list[tuple[str, str, str, int]]
Row = "Callable[[Obj, datetime], list[Cell]]"


def _columns(resource: ResourceType) -> tuple[Columns, Callable[[Obj, datetime], list[Cell]]]:
    if resource.custom and resource.columns:
        return _custom(resource)
    special = _SPECIAL.get(resource.plural)
    if special is None or resource.custom:
        return [_NAME, _AGE], lambda obj, now: [
            obj["metadata"]["name"],
            _age_of(obj, now),
        ]
    names, cells = special
    columns: Columns = [_NAME]
    columns += [(n.lstrip("+"), "string", "", 1 if n.startswith("+") else 0) for n in names]
    aged = "Age" not in names and "Last Seen" not in names
    after = next((i for i, c in enumerate(columns) if c[3] == 1), len(columns))
    if aged:
        columns.insert(after, _AGE)

    def row(obj: Obj, now: datetime) -> list[Cell]:
        values = [obj["metadata"]["name"], *cells(obj, now)]
        if aged:
            values.insert(after, _age_of(obj, now))
        return values

    return columns, row


def _age_of(obj: Obj, now: datetime) -> str:
    return age(obj["metadata"].get("creationTimestamp", ""), now)


def _custom(resource: ResourceType) -> tuple[Columns, Callable[[Obj, datetime], list[Cell]]]:
    columns: Columns = [_NAME]
    columns += [
        (c["name"], c["type"], c.get("format", ""), c.get("priority", 0)) for c in resource.columns
    ]

    def row(obj: Obj, now: datetime) -> list[Cell]:
        cells: list[Cell] = [obj["metadata"]["name"]]
        for column in resource.columns:
            found = json_path(obj, column["jsonPath"])
            value = found[0] if found else None
            if column["type"] == "date":
                cells.append(age(value, now) if value else None)
            elif column["type"] == "string" and len(found) > 1:
                cells.append(",".join(str(item) for item in found))
            elif column["type"] == "string" and value is not None and not isinstance(value, str):
                cells.append(str(value).lower() if isinstance(value, bool) else str(value))
            else:
                cells.append(value)
        return cells

    return columns, row


_STEP = re.compile(
    r"\.([A-Za-z_][\w-]*|\*)|\[(\*|-?\d+)\]|\['([^']+)'\]|\[\?\(@\.([\w.]+)\s*==\s*[\"']([^\"']*)[\"']\)\]"
)


def json_path(obj: Obj, path: str) -> list[Any]:
    """Give what a printer column's path finds: fields, indexes, `[*]` and `[?(@.a=="b")]`."""
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


def _pod(obj: Obj, now: datetime) -> list[Cell]:
    spec, status = obj["spec"], obj.get("status", {})
    states = status.get("containerStatuses", [])
    phase = status.get("reason") or status.get("phase", "")
    for state in states:
        waiting = state.get("state", {}).get("waiting", {})
        terminated = state.get("state", {}).get("terminated", {})
        phase = waiting.get("reason") or terminated.get("reason") or phase
    gated = any(c.get("reason") == "SchedulingGated" for c in status.get("conditions", []))
    if gated and not spec.get("nodeName"):
        phase = "SchedulingGated"
    if "deletionTimestamp" in obj["metadata"]:
        phase = "Terminating"
    ready = sum(1 for state in states if state.get("ready"))
    restarts = sum(state.get("restartCount", 0) for state in states)
    return [
        f"{ready}/{len(spec.get('containers', []))}",
        phase,
        str(restarts),
        status.get("podIP") or "<none>",
        spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>",
        "<none>",
    ]


def _node(obj: Obj, now: datetime) -> list[Cell]:
    status = obj.get("status", {})
    ready = next((c for c in status.get("conditions", []) if c.get("type") == "Ready"), None)
    words = ["Unknown" if ready is None else "Ready" if ready["status"] == "True" else "NotReady"]
    if obj["spec"].get("unschedulable"):
        words.append("SchedulingDisabled")
    labels = obj["metadata"].get("labels", {})
    roles = sorted(k.removeprefix(_STATUS_GROUP) for k in labels if k.startswith(_STATUS_GROUP))
    addresses = {a["type"]: a["address"] for a in status.get("addresses", [])}
    info = status.get("nodeInfo", {})
    return [
        ",".join(words),
        ",".join(roles) or "<none>",
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", "<none>"),
        addresses.get("ExternalIP", "<none>"),
        info.get("osImage") or "<unknown>",
        info.get("kernelVersion") or "<unknown>",
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def _claim(obj: Obj, now: datetime) -> list[Cell]:
    status = obj.get("status", {})
    states = []
    if "deletionTimestamp" in obj["metadata"]:
        states.append("deleted")
    if "allocation" in status:
        states.append("allocated")
        if status.get("reservedFor"):
            states.append("reserved")
    else:
        states.append("pending")
    return [",".join(states)]


def _slice(obj: Obj, now: datetime) -> list[Cell]:
    spec = obj["spec"]
    return [spec.get("nodeName", "<unset>"), spec["driver"], spec["pool"]["name"]]


def _event(obj: Obj, now: datetime) -> list[Cell]:
    about = obj.get("involvedObject", {})
    metadata, source = obj["metadata"], obj.get("source", {})
    seen = obj.get("series", {}).get("lastObservedTime") or obj.get("lastTimestamp")
    seen = seen or obj.get("eventTime") or metadata.get("creationTimestamp", "")
    first = obj.get("firstTimestamp") or obj.get("eventTime") or seen
    return [
        age(seen, now),
        obj.get("type", ""),
        obj.get("reason", ""),
        f"{about.get('kind', '').lower()}/{about.get('name', '')}",
        about.get("fieldPath", ""),
        ", ".join(filter(None, (source.get("component"), source.get("host"))))
        or obj.get("reportingComponent", ""),
        obj.get("message", "").strip(),
        age(first, now),
        str(obj.get("series", {}).get("count") or obj.get("count") or 1),
        metadata["name"],
    ]


def _lease(obj: Obj, now: datetime) -> list[Cell]:
    return [obj["spec"].get("holderIdentity", "")]


def _namespace(obj: Obj, now: datetime) -> list[Cell]:
    return [obj.get("status", {}).get("phase", "")]


def _data(obj: Obj, now: datetime) -> list[Cell]:
    return [str(len(obj.get("data", {})) + len(obj.get("binaryData", {})))]


def _definition(obj: Obj, now: datetime) -> list[Cell]:
    return [obj["metadata"].get("creationTimestamp", "")]


_SPECIAL: dict[str, tuple[tuple[str, ...], Callable[[Obj, datetime], list[Cell]]]] = {
    "pods": (
        ("Ready", "Status", "Restarts", "+IP", "+Node", "+Nominated Node", "+Readiness Gates"),
        _pod,
    ),
    "nodes": (
        (
            "Status", "Roles", "Version",
            "+Internal-IP", "+External-IP", "+OS-Image", "+Kernel-Version", "+Container-Runtime",
        ),
        _node,
    ),
    "resourceclaims": (("State",), _claim),
    "resourceslices": (("Node", "Driver", "Pool"), _slice),
    "events": (
        (
            "Last Seen", "Type", "Reason", "Object", "+Subobject", "+Source", "Message",
            "+First Seen", "+Count", "+Name",
        ),
        _event,
    ),
    "leases": (("Holder",), _lease),
    "namespaces": (("Status",), _namespace),
    "configmaps": (("Data",), _data),
    "customresourcedefinitions": (("Created At",), _definition),
}  # fmt: skip
