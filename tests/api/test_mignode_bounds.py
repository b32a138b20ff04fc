"""The definition of MigNodes and their reader have the same bounds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from api import mignode as wire

CRD = Path("api/crds/mignodes.yaml")
BOUNDS = ("type", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "pattern")


def _defined() -> dict[str, Any]:
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]
    return found


def _bounds(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each field below ``schema`` by its path, with its bounds and the fields that it requires."""
    bounds = {key: schema[key] for key in BOUNDS if key in schema}
    yield path, bounds | {"required": sorted(schema.get("required", ()))}
    for name, inner in schema.get("properties", {}).items():
        yield from _bounds(inner, f"{path}.{name}")
    if "items" in schema:
        yield from _bounds(schema["items"], f"{path}[]")


def _read(kind: type[msgspec.Struct]) -> dict[str, Any]:
    (schema,), components = msgspec.json.schema_components([kind], ref_template="{name}")

    def plain(each: Any) -> Any:
        if isinstance(each, list):
            return [plain(one) for one in each]
        if not isinstance(each, dict):
            return each
        if "$ref" in each:
            return plain(components[each["$ref"]])
        if "anyOf" in each:
            return plain(next(one for one in each["anyOf"] if one != {"type": "null"}))
        if "enum" in each:  # words of a list, of which the definition only says how long one is
            return {"type": "string", "maxLength": 63}
        return {key: plain(value) for key, value in each.items()}

    found: dict[str, Any] = plain(schema)
    return found


@pytest.mark.parametrize(
    ("part", "kind"), [("spec", wire.MigNodeSpec), ("status", wire.MigNodeStatus)]
)
def test_definition_and_reader_have_the_same_bounds(part: str, kind: type[msgspec.Struct]) -> None:
    defined, read = (dict(_bounds(schema, part)) for schema in (_defined()[part], _read(kind)))
    fields = defined.keys() | read.keys()
    unlike = {path for path in fields if defined.get(path) != read.get(path)}
    assert not unlike, f"{CRD} and api/mignode.py differ in {sorted(unlike)}: change one of them"


@pytest.mark.parametrize("part", ["spec", "status"])
def test_every_field_is_bounded(part: str) -> None:
    for path, bounds in _bounds(_defined()[part], part):
        lacking = {
            "string": {"maxLength"},
            "array": {"maxItems"},
            "integer": {"minimum", "maximum"},
        }.get(bounds["type"], set())
        assert lacking <= bounds.keys() or path.endswith("observedGeneration"), path
