"""Sets of fields: who owns what, and what differs between two versions of an object.

A field is a path of FieldsV1 elements (`f:spec`, `k:{"name":"a"}`, `v:"x"`). The rules are those
of sigs.k8s.io/structured-merge-diff: leaves are owned, items of keyed lists are owned beside
their leaves, and a container is owned by whoever brought it into being by an update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dra.common.resources import Obj
from sim.apiserver.schema.shapes import Shape, children, is_leaf

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
