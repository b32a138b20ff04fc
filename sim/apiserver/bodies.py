"""Bodies in and out: the form that a client wants, and the kind of patch that it sends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from dra.common.resources import Obj
from sim.apiserver import errors, fields
from sim.apiserver.patches import json_patch, merge_patch, strategic_patch
from sim.apiserver.tables import metadata_only, table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from sim.apiserver.requests import Request
    from sim.apiserver.resources import ResourceType
    from sim.apiserver.store import Record


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_PROTOBUF = "application/vnd.kubernetes.protobuf"
_MERGE = "application/merge-patch+json"
_JSON = "application/json-patch+json"
_STRATEGIC = "application/strategic-merge-patch+json"
_APPLY = "application/apply-patch+yaml"


class _PlainLoader(yaml.CSafeLoader):
    """YAML as JSON knows it: a timestamp stays the text that it is."""


_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def parse(request: Request) -> Any:
    """Reads a body in JSON, YAML or, for a few kinds, protobuf (400 or 415 if it is none)."""
    kind = request.headers.get("content-type", "")
    if kind.startswith(_PROTOBUF):
        # Its library doubles what a start costs, and kubectl alone sends it.
        from sim.apiserver import protobuf  # noqa: PLC0415

        return protobuf.decode(request.body)
    if "cbor" in kind:
        raise errors.unsupported_media_type(["application/json", "application/yaml"])
    if "yaml" not in kind:
        return _decode(request.body)
    try:
        return yaml.load(request.body, Loader=_PlainLoader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as malformed:
        raise errors.bad_request(f"error decoding YAML: {malformed}") from None


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch: `applies` for server-side apply of `body`, else what it makes of the live object."""

    body: Any
    transform: Callable[[Obj], Obj]
    applies: bool = False


def parse_patch(request: Request, resource: ResourceType) -> Patch:
    """Reads a patch of the type that the request names (415 for one that is not taken here)."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    accepted = [_JSON, _MERGE, _APPLY] if resource.custom else [_JSON, _MERGE, _STRATEGIC, _APPLY]
    if kind not in accepted:
        raise errors.unsupported_media_type(accepted)
    body = parse(request)
    if kind == _JSON:
        return Patch(body, lambda live: _object(json_patch(live, body)))
    if not isinstance(body, dict):
        raise errors.bad_request("the patch is no object")
    if kind == _MERGE:
        return Patch(body, lambda live: _object(merge_patch(live, body)))
    if kind == _STRATEGIC:
        return Patch(body, lambda live: _object(strategic_patch(resource.shape, live, body)))
    return Patch(body, lambda live: live, applies=True)


def _object(value: Any) -> Obj:
    if not isinstance(value, dict):
        raise errors.unprocessable()
    return value


def require_manager(manager: str) -> None:
    """Refuses (422) an apply that does not say who applies."""
    if manager:
        return
    cause = fields.required("fieldManager", "is required for apply patch")
    error = errors.ApiError(
        422,
        "Invalid",
        f'PatchOptions.meta.k8s.io "" is invalid: fieldManager: {cause.message()}',
        details={
            "group": "meta.k8s.io", "kind": "PatchOptions", "causes": [cause.as_json()],
        },
    )  # fmt: skip
    raise error


@dataclass(frozen=True, slots=True)
class Form:
    """Form in which a client wants objects: whole, as a Table, or as metadata only."""

    kind: str = ""
    include: str = "Metadata"

    @property
    def is_special(self) -> bool:
        """True if objects have to be converted."""
        return bool(self.kind)

    @property
    def content_type(self) -> str:
        """The content type of the answer."""
        return "application/json"

    def encode(self, resource: ResourceType, record: Record, now: datetime) -> bytes:
        """Writes one object."""
        if self.kind:
            return _encode(self.convert(resource, [record.obj], now))
        if record.raw and record.obj["apiVersion"] == resource.api_version:
            return record.raw
        return _encode(resource.present(record.obj))

    def convert(self, resource: ResourceType, objects: Sequence[Obj], now: datetime) -> Obj:
        """Converts one object: into its row, or into its metadata."""
        if self.kind == "Table":
            rows = table(resource, objects, now, include=self.include)
            rows["metadata"] = {"resourceVersion": objects[0]["metadata"]["resourceVersion"]}
            return rows
        return metadata_only(objects[0])


def form(request: Request) -> Form:
    """Chooses the first form that the client accepts and this server speaks (406 if none)."""
    accept = request.headers.get("accept") or "*/*"
    for clause in accept.split(","):
        kind, *parameters = [part.strip() for part in clause.split(";")]
        given = dict(part.partition("=")[::2] for part in parameters)
        if kind not in ("application/json", "*/*", "application/*"):
            continue
        wanted = given.get("as", "")
        if not wanted:
            return Form()
        if given.get("g") != "meta.k8s.io" or given.get("v") != "v1":
            continue
        if wanted == "Table":
            return Form("Table", request.query.get("includeObject", "Metadata"))
        if wanted in ("PartialObjectMetadata", "PartialObjectMetadataList"):
            return Form("PartialObjectMetadata")
    if "yaml" in accept:
        return Form()
    raise errors.not_acceptable()
