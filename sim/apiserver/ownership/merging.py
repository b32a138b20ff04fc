"""Merging for server-side apply: adds a configuration, prunes the fields that it gave up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sim.apiserver.schema.shapes import ANY, Shape, element_id, is_leaf

if TYPE_CHECKING:
    from sim.apiserver.ownership.fieldsets import FieldSet, Path


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
