"""OpenAPI version 2 of all that is served, in protobuf: the only form that older kubectls ask for.

Field numbers are those of ``openapiv2/OpenAPIv2.proto`` of gnostic-models.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING

from google.protobuf import json_format
from google.protobuf.message import Message

from dra.common.resources import Obj
from sim.apiserver.discovery import openapi
from sim.apiserver.discovery.groups import VERSION
from sim.apiserver.schema.messages import message_classes

if TYPE_CHECKING:
    from sim.apiserver.schema.resources import Catalogue

MEDIA_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_MESSAGES = {
    "Document": "swagger 1 string info 2 Info paths 8 Paths definitions 9 Properties",
    "Info": "title 1 string version 2 string",
    "Paths": "path 2 []NamedPathItem",
    "NamedPathItem": "name 1 string value 2 PathItem",
    "PathItem": "patch 8 Operation",
    "Operation": "parameters 8 []ParametersItem vendor_extension 13 []NamedAny",
    "ParametersItem": "parameter 1 Parameter",
    "Parameter": "non_body_parameter 2 NonBodyParameter",
    "NonBodyParameter": "query_parameter_sub_schema 3 QueryParameterSubSchema",
    "QueryParameterSubSchema": "in 2 string name 4 string type 6 string",
    "Properties": "additional_properties 1 []NamedSchema",
    "NamedSchema": "name 1 string value 2 Schema",
    "Schema": "_ref 1 string format 2 string description 4 string type 22 TypeItem "
    "items 23 ItemsItem additional_properties 21 AdditionalPropertiesItem "
    "properties 25 Properties vendor_extension 31 []NamedAny",
    "AdditionalPropertiesItem": "schema 1 Schema",
    "TypeItem": "value 1 []string",
    "ItemsItem": "schema 1 []Schema",
    "NamedAny": "name 1 string value 2 Any",
    "Any": "yaml 2 string",
}


def document(catalogue: Catalogue) -> bytes:
    """GET /openapi/v2."""
    served = catalogue.all()
    paths = [
        {"name": path, "value": {"patch": _operation(item["patch"])}}
        for path, item in map(openapi.path, served)
    ]
    info = {"title": "Kubernetes", "version": VERSION["gitVersion"]}
    whole = {
        "swagger": "2.0",
        "info": info,
        "paths": {"path": paths},
        "definitions": _properties(openapi.schemas(served)),
    }
    return json_format.ParseDict(whole, _classes()["Document"]()).SerializeToString()


@functools.cache
def _classes() -> dict[str, type[Message]]:
    return message_classes(_MESSAGES)


def _operation(patch: Obj) -> Obj:
    names = [parameter["name"] for parameter in patch["parameters"]]
    queries = [{"in": "query", "name": name, "type": "string"} for name in names]
    return {
        "parameters": [
            {"parameter": {"non_body_parameter": {"query_parameter_sub_schema": query}}}
            for query in queries
        ],
        "vendor_extension": _extensions(patch),
    }


def _properties(schemas: dict[str, Obj]) -> Obj:
    named = [{"name": name, "value": _schema(schema)} for name, schema in schemas.items()]
    return {"additional_properties": named}


def _schema(schema: Obj) -> Obj:
    found: Obj = {name: schema[name] for name in ("format", "description") if name in schema}
    for part in schema.get("allOf", []):
        found["_ref"] = part["$ref"].replace("#/components/schemas/", "#/definitions/")
    if "type" in schema:
        found["type"] = {"value": [schema["type"]]}
    if "items" in schema:
        found["items"] = {"schema": [_schema(schema["items"])]}
    if isinstance(extra := schema.get("additionalProperties"), dict):
        found["additional_properties"] = {"schema": _schema(extra)}
    if "properties" in schema:
        found["properties"] = _properties(schema["properties"])
    return found | {"vendor_extension": _extensions(schema)}


def _extensions(holder: Obj) -> list[Obj]:
    return [
        {"name": name, "value": {"yaml": json.dumps(value)}}
        for name, value in holder.items()
        if name.startswith("x-kubernetes-")
    ]
