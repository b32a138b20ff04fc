"""Ownership of fields: `metadata.managedFields`, and server-side apply, which decides by it.

A field is a path of FieldsV1 elements (`f:spec`, `k:{"name":"a"}`, `v:"x"`). The rules are those of
sigs.k8s.io/structured-merge-diff: leaves are owned, items of keyed lists are owned beside their
leaves, and a container is owned by whoever brought it into being by an update. A manager is (name,
operation, subresource, apiVersion). An update takes what it changed from all others. An apply owns
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
    from sim.apiserver.shapes import Shape


Path = tuple[str, ...]
FieldSet = frozenset[Path]

EMPTY: FieldSet = frozenset()

_SERVER_WRITTEN = (
    "clusterName",
    "creationTimestamp",
    "generation",
    "managedFields",
    "name",
    "namespace",
    "resourceVersion",
    "selfLink",
    "uid",
)
_NEVER_OWNED: frozenset[Path] = frozenset(
    [
        ("f:apiVersion",),
        ("f:kind",),
        ("f:metadata",),
        *(("f:metadata", "f:" + name) for name in _SERVER_WRITTEN),
    ]
)


@dataclass(frozen=True, slots=True)
class Difference:
    """Fields that only the old version has, that only the new one has, and that changed."""

    removed: FieldSet
    added: FieldSet
    modified: FieldSet


def ownable(fields: frozenset[Path] | set[Path]) -> FieldSet:
    """Drops what nobody owns: identity and what the server itself writes."""
    return frozenset(
        path
        for path in fields
        if path not in _NEVER_OWNED and path[:2] != ("f:metadata", "f:managedFields")
    )


def without(fields: FieldSet, prefixes: tuple[Path, ...]) -> FieldSet:
    """Drops the fields under any of the prefixes."""
    return frozenset(
        path for path in fields if not any(path[: len(prefix)] == prefix for prefix in prefixes)
    )


def applied_fields(shape: Shape, value: Any, path: Path = ()) -> set[Path]:
    """Gives what an applied configuration claims: leaves, keyed items, empty containers."""
    if is_leaf(shape, value) or not value:
        return {path} if path else set()
    found: set[Path] = set()
    for element, inner_shape, inner in children(shape, value):
        if element[0] in "kv":
            found.add((*path, element))
        found |= applied_fields(inner_shape, inner, (*path, element))
    return found


def _everything(shape: Shape, value: Any, path: Path) -> set[Path]:
    found = {path}
    if not is_leaf(shape, value):
        for element, inner_shape, inner in children(shape, value):
            found |= _everything(inner_shape, inner, (*path, element))
    return found


def compare(shape: Shape, old: Any, new: Any) -> Difference:
    """Compares two versions field by field."""
    removed: set[Path] = set()
    added: set[Path] = set()
    modified: set[Path] = set()

    def walk(shape: Shape, old: Any, new: Any, path: Path) -> None:
        if old == new and type(old) is type(new):
            return
        leaf = is_leaf(shape, old) or is_leaf(shape, new)
        if leaf or isinstance(old, dict) != isinstance(new, dict):
            modified.add(path)
            return
        before = {element: (inner, value) for element, inner, value in children(shape, old)}
        after = {element: (inner, value) for element, inner, value in children(shape, new)}
        for element, (inner, value) in before.items():
            if element not in after:
                removed.update(_everything(inner, value, (*path, element)))
        for element, (inner, value) in after.items():
            if element in before:
                walk(inner, before[element][1], value, (*path, element))
            else:
                added.update(_everything(inner, value, (*path, element)))

    walk(shape, old, new, ())
    return Difference(ownable(removed), ownable(added), ownable(modified))


def to_json(fields: FieldSet) -> Obj:
    """Writes a set as FieldsV1."""
    root: Obj = {}
    for path in sorted(fields):
        node = root
        for element in path:
            node = node.setdefault(element, {})
        node["."] = {}
    _drop_lone_dots(root)
    return root


def _drop_lone_dots(node: Obj) -> None:
    for child in node.values():
        if child.keys() == {"."}:
            del child["."]
        else:
            _drop_lone_dots(child)


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


def readable(path: Path) -> str:
    """Writes a path as conflict messages do: `.spec.containers[name="a"].image`."""
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


def merge(shape: Shape, live: Any, config: Any) -> Any:
    """`live` with everything that `config` says; lists with keys are merged by them."""
    if is_leaf(shape, config) or live is None:
        return config
    if isinstance(config, dict) and isinstance(live, dict):
        merged = dict(live)
        for name, value in config.items():
            merged[name] = merge(shape.child(name), live.get(name), value)
        return merged
    if isinstance(config, list) and isinstance(live, list):
        return _merge_lists(shape, live, config)
    return config


def _merge_lists(shape: Shape, live: list[Any], config: list[Any]) -> list[Any]:
    item = shape.item or ANY
    before = {element_id(shape, element): element for element in live}
    wanted = {element_id(shape, element): element for element in config}
    if shape.is_set:
        return live + [element for key, element in wanted.items() if key not in before]
    merged: list[Any] = []
    remaining = list(before)
    for key, element in wanted.items():
        while remaining and remaining[0] not in wanted:
            merged.append(before[remaining.pop(0)])
        if key in remaining:
            remaining.remove(key)
        merged.append(merge(item, before.get(key), element))
    return merged + [before[key] for key in remaining]


def prune(shape: Shape, value: Any, *, dropped: FieldSet, held: FieldSet) -> Any:
    """Removes the `dropped` fields, and containers that this leaves empty, unless `held`."""
    doomed = {path for path in dropped if not _is_held(path, held)}
    if not doomed:
        return value
    return _without(shape, value, (), doomed, held)


def _is_held(path: Path, held: FieldSet) -> bool:
    return any(other[: len(path)] == path for other in held)


def _without(shape: Shape, value: Any, path: Path, doomed: set[Path], held: FieldSet) -> Any:
    if is_leaf(shape, value):
        return value
    touched = [other for other in doomed if other[: len(path)] == path]
    if not touched:
        return value
    if isinstance(value, dict):
        kept_fields = {}
        for name, inner in value.items():
            inside = (*path, "f:" + name)
            if inside in doomed:
                continue
            rest = _without(shape.child(name), inner, inside, doomed, held)
            if not _emptied(inner, rest, inside, held):
                kept_fields[name] = rest
        return kept_fields
    kept_items = []
    for element in value:
        inside = (*path, element_id(shape, element))
        if inside not in doomed:
            kept_items.append(_without(shape.item or ANY, element, inside, doomed, held))
    return kept_items


def _emptied(before: Any, after: Any, path: Path, held: FieldSet) -> bool:
    return bool(before) and after in ({}, []) and not _is_held(path, held)


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
