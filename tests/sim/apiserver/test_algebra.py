"""Laws of patches, quantities and field ownership, on generated objects."""

from __future__ import annotations

import copy
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dra.common.quantity import parse_quantity
from sim.apiserver import ownership
from sim.apiserver.ownership import Manager, Write, compare, from_json, ownable, to_json
from sim.apiserver.patches import json_patch, merge_patch, strategic_patch
from sim.apiserver.shapes import ANY, TEXT, canonical, keyed, map_of, partial, set_of

Obj = dict[str, Any]

NAMES = st.sampled_from("abcd")
SCALARS = st.sampled_from(["1", "2", "3"])
ITEMS = st.dictionaries(NAMES, st.fixed_dictionaries({}, optional={"v": SCALARS, "w": SCALARS}))
SHAPE = partial(items=keyed(ANY, "name"), tags=set_of(merge=True), data=map_of(TEXT))


def as_object(data: Obj, items: dict[str, Obj], tags: set[str]) -> Obj:
    """An object as it is stored: without empty containers."""
    whole: Obj = {
        "data": data,
        "items": [{"name": name} | fields for name, fields in sorted(items.items())],
        "tags": sorted(tags),
    }
    return {name: value for name, value in whole.items() if value}


OBJECTS = st.builds(as_object, st.dictionaries(NAMES, SCALARS), ITEMS, st.sets(SCALARS))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["x", "y"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
NO_NULLS = JSON.filter(lambda value: "null" not in repr(value).replace("None", "null"))


def difference(old: Any, new: Any) -> Any:
    """The merge patch from one JSON value to another; null stands for removal."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    changed = {k: difference(old[k], v) for k, v in new.items() if k in old and old[k] != v}
    added = {k: v for k, v in new.items() if k not in old}
    return changed | added | {k: None for k in old if k not in new}


@given(st.dictionaries(NAMES, NO_NULLS), st.dictionaries(NAMES, NO_NULLS))
def test_a_merge_patch_leads_from_any_object_to_any_other(old: Obj, new: Obj) -> None:
    before = copy.deepcopy(old)
    assert merge_patch(old, difference(old, new)) == new
    assert old == before


@given(JSON, JSON)
def test_a_merge_patch_twice_is_a_merge_patch_once(target: Any, patch: Any) -> None:
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once


@given(st.dictionaries(NAMES, JSON, min_size=1), JSON, st.data())
def test_an_added_value_is_found_and_its_removal_undoes_it(
    document: Obj, value: Any, data: st.DataObject
) -> None:
    path = "/" + data.draw(st.sampled_from("wxyz"))
    added = json_patch(document, [{"op": "add", "path": path, "value": value}])
    assert added[path[1:]] == value
    checked = [{"op": "test", "path": path, "value": value}, {"op": "remove", "path": path}]
    assert json_patch(added, checked) == document


@given(OBJECTS, OBJECTS)
def test_a_strategic_patch_adds_and_changes_but_loses_nothing(old: Obj, patch: Obj) -> None:
    patched = strategic_patch(SHAPE, old, patch)
    names = {item["name"] for item in [*old.get("items", []), *patch.get("items", [])]}
    assert {item["name"] for item in patched.get("items", [])} == names
    assert set(patched.get("tags", [])) == {*old.get("tags", []), *patch.get("tags", [])}
    assert patched.get("data", {}) == old.get("data", {}) | patch.get("data", {})
    assert strategic_patch(SHAPE, patched, patch) == patched


@given(OBJECTS, OBJECTS)
def test_a_difference_is_mirrored_by_its_opposite(old: Obj, new: Obj) -> None:
    there, back = compare(SHAPE, old, new), compare(SHAPE, new, old)
    assert (there.added, there.removed, there.modified) == (
        back.removed,
        back.added,
        back.modified,
    )
    assert not (there.added & there.removed)


@given(OBJECTS)
def test_field_sets_survive_their_json(obj: Obj) -> None:
    fields = compare(SHAPE, {}, obj).added
    assert from_json(to_json(fields)) == ownable(fields)


def applied(live: Obj, config: Obj, who: str) -> Obj:
    live = copy.deepcopy(live) if live else {"metadata": {}}
    write = Write(Manager("Apply", who, "v1"), "2026-11-21T00:00:00Z")
    return ownership.apply(SHAPE, live, copy.deepcopy(config) | {"metadata": {}}, write, force=True)


def content(obj: Obj) -> Obj:
    """The data of an object, with lists in one order."""
    found = {name: value for name, value in obj.items() if name != "metadata"}
    for name in ("items", "tags"):
        if name in found:
            found[name] = sorted(found[name], key=str)
    return found


@given(OBJECTS, OBJECTS)
def test_a_lone_applier_gets_exactly_what_it_applies(first: Obj, second: Obj) -> None:
    assert content(applied(applied({}, first, "me"), second, "me")) == content(second)


@given(OBJECTS, OBJECTS)
def test_an_apply_twice_is_an_apply_once(first: Obj, second: Obj) -> None:
    once = applied(applied({}, first, "you"), second, "me")
    assert applied(once, second, "me") == once


@given(OBJECTS, OBJECTS)
@settings(max_examples=200)
def test_a_guest_that_leaves_leaves_what_the_host_applied(host: Obj, guest: Obj) -> None:
    """Where both agree or speak of different fields, the guest's going undoes its coming."""
    alone = applied({}, host, "host")
    both = applied(alone, guest, "guest")
    left = applied(both, {}, "guest")
    if not compare(SHAPE, content(alone), content(both)).modified:
        assert content(left) == content(alone)
    managers = {entry["manager"] for entry in left["metadata"].get("managedFields", [])}
    assert "guest" not in managers


@given(
    st.integers(-(10**6), 10**6),
    st.sampled_from(["", "m", "k", "M", "G", "Ki", "Mi", "Gi", "e3", "E2"]),
)
def test_a_canonical_quantity_is_worth_the_same_and_stays(number: int, suffix: str) -> None:
    text = f"{number}{suffix}"
    kept = canonical(text)
    assert parse_quantity(kept) == parse_quantity(text)
    assert canonical(kept) == kept


@given(st.decimals(0, 10**4, places=3, allow_nan=False))
def test_fractions_become_whole_numbers_of_a_smaller_unit(value: Decimal) -> None:
    kept = canonical(str(value))
    assert "." not in kept
    assert parse_quantity(kept) == value
