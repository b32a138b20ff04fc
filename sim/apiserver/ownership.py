"""Ownership of fields: `metadata.managedFields`, and server-side apply, which decides by it.

A field is a path of FieldsV1 elements (`f:spec`, `k:{"name":"a"}`, `v:"x"`). The rules are those of
sigs.k8s.io/structured-merge-diff, but that containers have no owner: leaves are owned, and items of
keyed lists beside their leaves. An update takes what it changed from all others. An apply owns
exactly what its configuration holds: it gives up what it no longer lists, and meets a conflict
where it would change what another manager owns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dra.common.resources import Obj
from sim.apiserver import errors
from sim.apiserver.shapes import ANY, Shape, children, element_id, is_leaf

if TYPE_CHECKING:
    from collections.abc import Iterable


Path = tuple[str, ...]
FieldSet = frozenset[Path]

EMPTY: FieldSet = frozenset()
_SERVER_WRITTEN = (
    *("creationTimestamp", "generation", "managedFields", "name", "namespace"),
    *("resourceVersion", "selfLink", "uid"),
)
_NEVER_OWNED: FieldSet = frozenset(
    [
        *(("f:apiVersion",), ("f:kind",), ("f:metadata",)),
        *(("f:metadata", "f:" + name) for name in _SERVER_WRITTEN),
    ]
)


def ownable(fields: Iterable[Path]) -> FieldSet:
    """Drops what nobody owns: identity and what the server itself writes."""
    return frozenset(fields) - _NEVER_OWNED


def without(fields: FieldSet, prefixes: tuple[Path, ...]) -> FieldSet:
    """Drops the fields under any of the prefixes."""
    return frozenset(
        path for path in fields if not any(path[: len(prefix)] == prefix for prefix in prefixes)
    )


def _leaves(shape: Shape, value: Any, path: Path = ()) -> dict[Path, Any]:
    """The ownable parts of a value: leaves, empty containers, items of keyed lists."""
    if path and (is_leaf(shape, value) or not value):
        return {path: value}
    found: dict[Path, Any] = {}
    for element, inner_shape, inner in children(shape, value):
        inside = (*path, element)
        if element[0] == "k":
            found[inside] = None
        found |= _leaves(inner_shape, inner, inside)
    return found


def compare(shape: Shape, old: Obj, new: Obj) -> tuple[FieldSet, FieldSet]:
    """The fields that only the old version has, and those that are new or changed."""
    before, after = _leaves(shape, _bare(old)), _leaves(shape, _bare(new))
    changed = {path for path, value in after.items() if (path, value) not in before.items()}
    return ownable(before.keys() - after.keys()), ownable(changed)


def _bare(obj: Any) -> Any:
    metadata = {k: v for k, v in obj.get("metadata", {}).items() if k != "managedFields"}
    return obj | {"metadata": metadata}


def to_json(fields: FieldSet) -> Obj:
    """Writes a set as FieldsV1."""
    root: Obj = {}
    for path in sorted(fields):
        node = root
        for element in path:
            node = node.setdefault(element, {})
        node["."] = {}

    def drop_lone_dots(node: Obj) -> Obj:
        return {} if node.keys() == {"."} else {k: drop_lone_dots(v) for k, v in node.items()}

    return {element: drop_lone_dots(inner) for element, inner in root.items()}


def from_json(node: Obj, path: Path = ()) -> FieldSet:
    """Reads a set from FieldsV1."""
    found: set[Path] = set()
    for element, inner in node.items():
        if element == ".":
            found.add(path)
        elif inner:
            found |= from_json(inner, (*path, element))
        else:
            found.add((*path, element))
    return frozenset(found)


def _readable(path: Path) -> str:
    """A path as conflict messages write it: `.spec.containers[name="a"].image`."""
    text = ""
    for element in path:
        kind, body = element[0], element[2:]
        if kind == "f":
            text += "." + body
        elif kind == "k":
            pairs = body[1:-1].replace('":', "=").replace('"', "", 1).replace(',"', ",")
            text += f"[{pairs}]"
        else:
            text += f"[={body}]"
    return text


def _merge(shape: Shape, live: Any, config: Any) -> Any:
    """`live` with everything that `config` says; lists with keys are merged by them."""
    if is_leaf(shape, config) or type(live) is not type(config):
        return config
    if isinstance(config, dict):
        return live | {
            name: _merge(shape.child(name), live.get(name), value) for name, value in config.items()
        }
    before = {element_id(shape, element): element for element in live}
    wanted = {element_id(shape, element): element for element in config}
    merged: list[Any] = []
    remaining = list(before)
    for key, element in wanted.items():
        while remaining and remaining[0] not in wanted:
            merged.append(before[remaining.pop(0)])
        if key in remaining:
            remaining.remove(key)
        merged.append(_merge(shape.item or ANY, before.get(key), element))
    return merged + [before[key] for key in remaining]


def _prune(shape: Shape, value: Any, doomed: FieldSet, path: Path = ()) -> Any:
    """Removes the `doomed` fields, and objects that this leaves empty."""
    if is_leaf(shape, value) or not any(other[: len(path)] == path for other in doomed):
        return value
    is_object = isinstance(value, dict)
    kept: list[tuple[str, Any]] = []
    for element, inner_shape, inner in children(shape, value):
        if (*path, element) in doomed:
            continue
        rest = _prune(inner_shape, inner, doomed, (*path, element))
        if rest or not inner or not is_object:
            kept.append((element[2:], rest))
    return dict(kept) if is_object else [rest for _, rest in kept]


def _is_held(path: Path, held: FieldSet) -> bool:
    return any(other[: len(path)] == path for other in held)


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


def _read(obj: Obj) -> Managers:
    return {
        Manager(
            entry.get("operation", "Update"),
            entry.get("manager", ""),
            entry.get("apiVersion", ""),
            entry.get("subresource", ""),
        ): Ownership(from_json(entry.get("fieldsV1", {})), entry.get("time", ""))
        for entry in obj["metadata"].get("managedFields", [])
    }


def _write(obj: Obj, managers: Managers) -> None:
    """Writes the managers into an object, appliers first, then by time."""
    entries = []
    for manager in sorted(managers, key=lambda m: (m.operation, managers[m].time, m)):
        entry: Obj = {
            "manager": manager.name,
            "operation": manager.operation,
            "apiVersion": manager.api_version,
            "time": managers[manager].time,
            "fieldsType": "FieldsV1",
            "fieldsV1": to_json(managers[manager].fields),
        }
        if manager.subresource:
            entry["subresource"] = manager.subresource
        entries.append(entry)
    if entries:
        obj["metadata"]["managedFields"] = entries
    else:
        obj["metadata"].pop("managedFields", None)


def _set(managers: Managers, manager: Manager, fields: FieldSet, time: str = "") -> None:
    """Has a manager own these fields; one that owns nothing is none. Without time it stays."""
    before = managers.get(manager, Ownership(EMPTY, time))
    if not fields:
        managers.pop(manager, None)
    elif fields != before.fields:
        managers[manager] = Ownership(fields, time or before.time)


def track_update(shape: Shape, old: Obj, new: Obj, write: Write) -> None:
    """Records in `new` what this update changed.

    An update that empties `managedFields` on purpose resets the ownership, as in Kubernetes.
    """
    managers = {} if new["metadata"].get("managedFields") == [{}] else _read(old)
    removed, changed = compare(shape, old, new)
    changed = without(changed, write.reset)
    for other, owned in list(managers.items()):
        if other != write.manager:
            _set(managers, other, owned.fields - changed - removed)
    mine = managers.get(write.manager, Ownership(EMPTY, write.time)).fields
    _set(managers, write.manager, (mine - removed) | changed, write.time)
    _write(new, managers)


def apply(shape: Shape, live: Obj, config: Obj, write: Write, *, force: bool) -> Obj:
    """The object that results from applying `config` to `live`; neither is changed.

    Raises:
        ApiError: 409 with a cause for every field that another manager owns with another value.
    """
    managers, config = _read(live), _bare(config)
    last = managers.get(write.manager, Ownership(EMPTY, "")).fields
    mine = without(ownable(_leaves(shape, config)), write.reset)
    others = {m: owned.fields for m, owned in managers.items() if m != write.manager}
    held = frozenset().union(mine, *others.values())
    doomed = frozenset(path for path in last - mine if not _is_held(path, held))
    merged: Obj = _prune(shape, _merge(shape, _bare(live), config), doomed)
    removed, changed = compare(shape, live, merged)
    conflicts = {m: found for m, fields in others.items() if (found := fields & changed & mine)}
    if conflicts and not force:
        raise _conflict(conflicts)
    for other, fields in others.items():
        _set(managers, other, fields - conflicts.get(other, EMPTY) - removed)
    _set(managers, write.manager, mine, write.time)
    _write(merged, managers)
    return merged


def _conflict(conflicts: dict[Manager, FieldSet]) -> errors.ApiError:
    causes = []
    for manager, fields in sorted(conflicts.items()):
        who = f'conflict with "{manager.name}"'
        if manager.subresource:
            who += f' with subresource "{manager.subresource}"'
        if manager.operation == "Update":
            who += f" using {manager.api_version}"
        causes += [
            {"reason": "FieldManagerConflict", "message": who, "field": _readable(path)}
            for path in sorted(fields)
        ]
    number = f"{len(causes)} conflict" + ("s" if len(causes) > 1 else "")
    text = ", ".join(f"{cause['message']}: {cause['field']}" for cause in causes)
    details = {"causes": causes}
    return errors.ApiError(409, "Conflict", f"Apply failed with {number}: {text}", details=details)
