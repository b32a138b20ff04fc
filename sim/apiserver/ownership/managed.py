"""`metadata.managedFields`: kept for every write, decided upon by server-side apply.

A manager is (name, operation, subresource, apiVersion). An update takes what it changed from
all others. An apply owns exactly what its configuration holds: it gives up what it no longer
lists, and meets a conflict where it would change what another manager owns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dra.common.resources import Obj
from sim.apiserver.ownership.fieldsets import (
    EMPTY,
    FieldSet,
    Path,
    applied_fields,
    compare,
    from_json,
    ownable,
    readable,
    to_json,
    without,
)
from sim.apiserver.ownership.merging import merge, prune
from sim.apiserver.refusals import errors

if TYPE_CHECKING:
    from sim.apiserver.schema.shapes import Shape

_MANAGERS_KEPT_FOR_UPDATES = 10


@dataclass(frozen=True, slots=True, order=True)
class Manager:
    """Writer of fields: two entries of one object never share all four."""

    operation: str
    name: str
    api_version: str
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Ownership:
    """Fields that one manager owns, and the time of its last change (RFC 3339)."""

    fields: FieldSet
    time: str


Managers = dict[Manager, Ownership]


@dataclass(frozen=True, slots=True)
class Write:
    """The circumstances of a write: the manager, the time, and the fields it may not touch."""

    manager: Manager
    time: str
    reset: tuple[Path, ...] = ()


def read(obj: Obj) -> Managers:
    """Reads the managers of an object."""
    return {
        Manager(
            entry.get("operation", "Update"),
            entry.get("manager", ""),
            entry.get("apiVersion", ""),
            entry.get("subresource", ""),
        ): Ownership(from_json(entry.get("fieldsV1", {})), entry.get("time", ""))
        for entry in obj["metadata"].get("managedFields", [])
    }


def write(obj: Obj, managers: Managers) -> None:
    """Writes the managers into an object, appliers first, then by time."""
    entries = []
    kept = _merge_ancient(managers)
    for manager in sorted(kept, key=lambda m: (m.operation, kept[m].time, m)):
        owned = kept[manager]
        entry: Obj = {
            "manager": manager.name,
            "operation": manager.operation,
            "apiVersion": manager.api_version,
            "time": owned.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": to_json(owned.fields),
        }
        if manager.subresource:
            entry["subresource"] = manager.subresource
        entries.append(entry)
    if entries:
        obj["metadata"]["managedFields"] = entries
    else:
        obj["metadata"].pop("managedFields", None)


def _merge_ancient(managers: Managers) -> Managers:
    updates = sorted(
        (m for m in managers if m.operation == "Update"), key=lambda m: managers[m].time
    )
    surplus = updates[: max(0, len(updates) - _MANAGERS_KEPT_FOR_UPDATES)]
    kept = {m: owned for m, owned in managers.items() if m not in surplus}
    for manager in surplus:
        ancient = Manager("Update", "ancient-changes", manager.api_version)
        before = kept.get(ancient)
        fields = managers[manager].fields | (before.fields if before else EMPTY)
        kept[ancient] = Ownership(fields, managers[manager].time)
    return kept


def track_update(shape: Shape, old: Obj, new: Obj, write_: Write) -> None:
    """Records in `new` what this update changed.

    An update that empties `managedFields` on purpose resets the ownership, as in Kubernetes.
    """
    managers = {} if new["metadata"].get("managedFields") == [{}] else read(old)
    difference = compare(shape, _bare(old), _bare(new))
    changed = without(difference.modified | difference.added, write_.reset)
    for other, owned in list(managers.items()):
        if other != write_.manager:
            _keep(managers, other, owned.fields - changed - difference.removed)
    mine = managers.get(write_.manager, Ownership(EMPTY, write_.time))
    fields = (mine.fields - difference.removed) | changed
    if fields != mine.fields:
        managers[write_.manager] = Ownership(fields, write_.time)
    _keep(managers, write_.manager, fields)
    write(new, managers)


def _keep(managers: Managers, manager: Manager, fields: FieldSet) -> None:
    if not fields:
        managers.pop(manager, None)
    elif manager in managers and managers[manager].fields != fields:
        managers[manager] = Ownership(fields, managers[manager].time)


def _bare(obj: Obj) -> Obj:
    metadata = {k: v for k, v in obj.get("metadata", {}).items() if k != "managedFields"}
    return obj | {"metadata": metadata}


def apply(shape: Shape, live: Obj, config: Obj, write_: Write, *, force: bool) -> Obj:
    """The object that results from applying `config` to `live`; neither is changed.

    Raises:
        ApiError: 409 with a cause for every field that another manager owns with another value.
    """
    managers = read(live)
    config = _bare(config)
    last = managers.get(write_.manager, Ownership(EMPTY, "")).fields
    mine = without(ownable(applied_fields(shape, config)), write_.reset)
    others = {m: owned.fields for m, owned in managers.items() if m != write_.manager}
    merged: Obj = merge(shape, _bare(live), config)
    held = frozenset().union(mine, *others.values())
    merged = prune(shape, merged, dropped=last - mine, held=held)
    difference = compare(shape, _bare(live), merged)
    changed = difference.modified | difference.added
    conflicts = {m: fields & changed & mine for m, fields in others.items() if fields & changed}
    conflicts = {m: fields for m, fields in conflicts.items() if fields}
    if conflicts and not force:
        raise _conflict(conflicts)
    for other, fields in others.items():
        _keep(managers, other, fields - conflicts.get(other, EMPTY) - difference.removed)
    if write_.manager not in managers or managers[write_.manager].fields != mine:
        managers[write_.manager] = Ownership(mine, write_.time)
    if not mine:
        del managers[write_.manager]
    write(merged, managers)
    return merged


def _conflict(conflicts: dict[Manager, FieldSet]) -> errors.ApiError:
    causes, lines = [], []
    for manager in sorted(conflicts):
        who = f'conflict with "{manager.name}"'
        if manager.subresource:
            who += f' with subresource "{manager.subresource}"'
        if manager.operation == "Update":
            who += f" using {manager.api_version}"
        paths = [readable(path) for path in sorted(conflicts[manager])]
        causes += [
            {"reason": "FieldManagerConflict", "message": who, "field": path} for path in paths
        ]
        lines.append(
            f"{who}: {paths[0]}" if len(paths) == 1 else f"{who}:\n- " + "\n- ".join(paths)
        )
    number = f"{len(causes)} conflict" + ("s" if len(causes) > 1 else "")
    text = lines[0] if len(lines) == 1 else "\n".join("conflicts " + line for line in lines)
    return errors.apply_conflict(f"Apply failed with {number}: {text}", causes)
