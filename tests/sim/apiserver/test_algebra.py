"""Laws of patches, quantities and field ownership, on generated objects."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dra.common.quantity import parse_quantity
from sim.apiserver import ownership
from sim.apiserver.ownership import Manager, Write, compare, from_json, to_json
from sim.apiserver.patches import strategic_patch
from sim.apiserver.shapes import ANY, canonical, keyed, map_of, set_of, struct

Obj = dict[str, Any]

NAMES = st.sampled_from("abcd")
SCALARS = st.sampled_from(["1", "2", "3"])
ITEMS = st.dictionaries(NAMES, st.fixed_dictionaries({}, optional={"v": SCALARS, "w": SCALARS}))
SHAPE = struct(items=keyed(ANY, "name"), tags=set_of(), data=map_of(ANY))


def as_object(data: Obj, items: dict[str, Obj], tags: set[str]) -> Obj:
    """An object as it is stored: without empty containers."""
    whole: Obj = {
        "data": data,
        "items": [{"name": name} | fields for name, fields in sorted(items.items())],
        "tags": sorted(tags),
    }
    return {name: value for name, value in whole.items() if value}


OBJECTS = st.builds(as_object, st.dictionaries(NAMES, SCALARS), ITEMS, st.sets(SCALARS))


@given(OBJECTS, OBJECTS)
def test_a_strategic_patch_adds_and_changes_but_loses_nothing(old: Obj, patch: Obj) -> None:
    patched = strategic_patch(SHAPE, old, patch)
    names = {item["name"] for item in [*old.get("items", []), *patch.get("items", [])]}
    assert {item["name"] for item in patched.get("items", [])} == names
    assert set(patched.get("tags", [])) == {*old.get("tags", []), *patch.get("tags", [])}
    assert patched.get("data", {}) == old.get("data", {}) | patch.get("data", {})
    assert strategic_patch(SHAPE, patched, patch) == patched


@given(OBJECTS)
def test_field_sets_survive_their_json(obj: Obj) -> None:
    _, added = compare(SHAPE, {}, obj)
    assert from_json(to_json(added)) == added


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


@given(
    st.integers(-(10**6), 10**6),
    st.sampled_from(["", "m", "k", "M", "G", "Ki", "Mi", "Gi", "e3", "E2"]),
)
def test_a_canonical_quantity_is_worth_the_same_and_stays(number: int, suffix: str) -> None:
    text = f"{number}{suffix}"
    kept = canonical(text)
    assert parse_quantity(kept) == parse_quantity(text)
    assert canonical(kept) == kept
