"""Requests: what they are about, by whom, and the body in the form in which objects are kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
import yaml

from dra.common.resources import Obj
from sim.apiserver import errors, protobuf
from sim.apiserver.patches import json_patch, merge_patch, strategic_patch
from sim.apiserver.shapes import normalise

if TYPE_CHECKING:
    from collections.abc import Callable

    from sim.apiserver.resources import Catalogue, ResourceType


_decode = msgspec.json.Decoder().decode
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


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write: field manager, dry run, and whether unknown fields are refused.

    Fields are known of custom resources, and at the top of built-in ones.
    """

    manager: str = "unknown"
    dry_run: bool = False
    validation: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """Target of a request."""

    resource: ResourceType
    namespace: str
    name: str
    subresource: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """The key in the store."""
        return (self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request, read completely. Header names are in lower case."""

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def flag(self, name: str) -> bool:
        """True if a query parameter is true."""
        return self.query.get(name) in ("true", "1", "True")

    def number(self, name: str) -> int:
        """A query parameter as a number, 0 if it is missing (400 if it is none)."""
        text = self.query.get(name) or "0"
        if not text.isdigit():
            raise errors.bad_request(f'Invalid value: "{text}": {name}: strconv.ParseUint')
        return int(text)

    def options(self) -> WriteOptions:
        """Gives who writes, from the query and the user agent."""
        agent = self.headers.get("user-agent", "").partition("/")[0]
        return WriteOptions(
            manager=self.query.get("fieldManager") or agent or "unknown",
            dry_run=self.query.get("dryRun") == "All",
            validation=self.query.get("fieldValidation", ""),
        )

    def parse(self) -> Any:
        """Reads the body in JSON, YAML or, for a few kinds, protobuf (400 or 415 if it is none)."""
        kind = self.headers.get("content-type", "")
        if "protobuf" in kind:
            return protobuf.decode(self.body)
        if "yaml" not in kind:
            return _decode(self.body)
        try:
            return yaml.load(self.body, Loader=_PlainLoader)  # noqa: S506 - a SafeLoader
        except yaml.YAMLError as malformed:
            raise errors.bad_request(f"error decoding YAML: {malformed}") from None

    def patch(self, resource: ResourceType) -> tuple[Any, Callable[[Obj], Any] | None]:
        """The patch, and what it makes of the live object; None for server-side apply.

        Raises:
            ApiError: 415 for a type of patch that is not taken here.
        """
        kind = self.headers.get("content-type", "").partition(";")[0].strip()
        merging: dict[str, Callable[[Obj, Any], Any]] = {_JSON: json_patch, _MERGE: merge_patch}
        if not resource.custom:
            merging[_STRATEGIC] = lambda live, body: strategic_patch(resource.shape, live, body)
        if kind not in (*merging, _APPLY):
            raise errors.unsupported_media_type([*merging, _APPLY])
        body = self.parse()
        if kind == _APPLY:
            return body, None
        return body, lambda live: merging[kind](live, body)


def split(raw_target: str) -> tuple[str, dict[str, str]]:
    """Splits a request target into its path and its query."""
    parts = urlsplit(raw_target)
    return unquote(parts.path), dict(parse_qsl(parts.query, keep_blank_values=True))


def resolve(path: str, catalogue: Catalogue) -> Target | None:
    """Gives what a path below `/api` or `/apis` is about; None if it is no resource's path."""
    match path.strip("/").split("/"):
        case ["api", version, plural, *rest]:
            group = ""
        case ["apis", group, version, plural, *rest]:
            pass
        case _:
            return None
    namespace = ""
    # /namespaces/<name>/status is the namespace's own; /namespaces/<name>/pods is within it.
    if plural == "namespaces" and len(rest) > 1 and (group or rest[1:] != ["status"]):
        namespace, plural, *rest = rest
    name, subresource, *more = [*rest, "", ""][: max(2, len(rest))]
    resource = catalogue.find(group, version, plural)
    if resource is None or more or (subresource and subresource not in resource.subresources):
        return None
    if (namespace and not resource.namespaced) or (name and resource.namespaced and not namespace):
        return None
    return Target(resource, namespace, name, subresource)


def decode(target: Target, body: Any, options: WriteOptions, warnings: list[str]) -> Obj:
    """Checks the type of a body and brings it into the form in which it is kept."""
    resource = target.resource
    if not isinstance(body, dict) or not isinstance(body.setdefault("metadata", {}), dict):
        raise errors.bad_request("the body of the request, or its metadata, is no object")
    wrong = f'{resource.kind} in version "{resource.version}" cannot be handled as a '
    if body.setdefault("apiVersion", resource.api_version) != resource.api_version:
        raise errors.bad_request(
            f"the API version in the data ({body['apiVersion']}) does not match the expected "
            f"API version ({resource.api_version})"
        )
    if body.setdefault("kind", resource.kind) != resource.kind:
        text = f'{wrong}{body["kind"]}: no kind "{body["kind"]}" is registered'
        raise errors.bad_request(text)
    unknown: list[str] = []
    obj = normalise(resource.shape, body, unknown, keeps_empty=resource.custom)
    obj.setdefault("metadata", {})
    found = [f'unknown field "{field}"' for field in unknown]
    if found and options.validation == "Strict":
        text = f"{wrong}{resource.kind}: strict decoding error: {', '.join(found)}"
        raise errors.bad_request(text)
    if options.validation != "Ignore":
        warnings += found
    if resource.idle:
        text = f"this simulated cluster stores {resource.kind}s and does nothing with them"
        warnings.append(f"{text}: that takes a real one (make cluster)")
    return obj


def check_identity(target: Target, metadata: Obj, old: Obj) -> None:
    """Completes the identity in a body, or refuses (400, 409) one that is not that of `old`."""
    resource, name = target.resource, target.name
    for part in ("name", "namespace") if resource.namespaced else ("name",):
        wanted = getattr(target, part)
        if metadata.setdefault(part, wanted) != wanted:
            raise errors.bad_request(
                f"the {part} of the object ({metadata[part]}) does not match the {part} on "
                f"the URL ({wanted})"
            )
    uid = old["metadata"]["uid"]
    if metadata.get("uid", uid) != uid:
        why = (
            f"Precondition failed: UID in precondition: {metadata['uid']}, "
            f"UID in object meta: {uid}"
        )
        raise errors.conflict(resource, name, why)
    version = metadata.get("resourceVersion", "")
    if version and version != old["metadata"]["resourceVersion"]:
        raise errors.conflict(resource, name)
