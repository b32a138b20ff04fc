"""Requests: what they are about, by whom, and the body in the form in which objects are kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from dra.common.resources import Obj
from sim.apiserver import errors, models
from sim.apiserver.shapes import normalise

if TYPE_CHECKING:
    from sim.apiserver.resources import Catalogue, ResourceType


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write: field manager, dry run, and whether unknown fields are refused.

    Without ``validation`` there are warnings, but of kinds that are described completely only: to
    know the fields of all kinds takes a second, which is for those who ask.
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


def decode(target: Target, body: Obj, options: WriteOptions, warnings: list[str]) -> Obj:
    """Checks the type of a body and brings it into the form in which it is kept."""
    resource = target.resource
    if not isinstance(body, dict):
        raise errors.bad_request("the body of the request is no object")
    body.setdefault("apiVersion", resource.api_version)
    body.setdefault("kind", resource.kind)
    if body["apiVersion"] != resource.api_version:
        raise errors.bad_request(
            f"the API version in the data ({body['apiVersion']}) does not match the expected "
            f"API version ({resource.api_version})"
        )
    if body["kind"] != resource.kind:
        raise errors.bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a '
            f'{body["kind"]}: no kind "{body["kind"]}" is registered'
        )
    if not isinstance(body.setdefault("metadata", {}), dict):
        raise errors.bad_request("metadata is no object")
    unknown: list[str] = []
    if options.validation in ("Strict", "Warn") and not resource.custom:
        unknown += models.drop_unknown(models.model_name(resource), body)
    obj = normalise(resource.shape, body, unknown)
    obj.setdefault("metadata", {})
    found = [f'unknown field "{field}"' for field in unknown]
    if found and options.validation == "Strict":
        raise errors.bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a '
            f"{resource.kind}: strict decoding error: {', '.join(found)}"
        )
    if options.validation != "Ignore":
        warnings += found
    if resource.lacking:
        warnings.append(resource.lacking)
    return obj


def check_identity(target: Target, metadata: Obj, old: Obj) -> None:
    """Completes the identity in a body, or refuses (400, 409) one that is not that of `old`."""
    resource, name = target.resource, target.name
    if metadata.setdefault("name", name) != name:
        raise errors.bad_request(
            f"the name of the object ({metadata['name']}) does not match the name on the URL "
            f"({name})"
        )
    if resource.namespaced and (
        metadata.setdefault("namespace", target.namespace) != target.namespace
    ):
        raise errors.bad_request(
            f"the namespace of the object ({metadata['namespace']}) does not match the "
            f"namespace on the URL ({target.namespace})"
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


_TRUE = ("true", "1", "True")


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
        return self.query.get(name) in _TRUE

    def number(self, name: str) -> int:
        """A query parameter as a number, 0 if it is missing (400 if it is none)."""
        text = self.query.get(name) or "0"
        if not text.isdigit():
            raise errors.bad_request(f'query parameter {name}: "{text}" is no number')
        return int(text)

    def write_options(self) -> WriteOptions:
        """Gives who writes, from the query and the user agent."""
        agent = self.headers.get("user-agent", "unknown").partition("/")[0]
        dry_run = self.query.get("dryRun", "")
        if dry_run not in ("", "All"):
            raise errors.bad_request(f'Invalid value: "{dry_run}": dryRun: supported: "All"')
        return WriteOptions(
            manager=self.query.get("fieldManager") or agent or "unknown",
            dry_run=dry_run == "All",
            validation=self.query.get("fieldValidation", ""),
        )


def split(raw_target: str) -> tuple[str, dict[str, str]]:
    """Splits a request target into its path and its query."""
    parts = urlsplit(raw_target)
    return unquote(parts.path), dict(parse_qsl(parts.query, keep_blank_values=True))


def resolve(path: str, catalogue: Catalogue) -> Target | None:
    """Gives what a path below `/api` or `/apis` is about; None if it is no resource's path."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:  # noqa: PLR2004 - /api/v1/<resource>
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:  # noqa: PLR2004 - /apis/<group>/<version>/<resource>
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    # /namespaces/<name>/status is the namespace's own; /namespaces/<name>/pods is within it.
    if rest[0] == "namespaces" and len(rest) > 2 and not _is_of_namespace(group, rest):  # noqa: PLR2004
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource, *more = [*rest, "", "", ""][: max(3, len(rest))]
    resource = catalogue.find(group, version, plural)
    if resource is None or any(more):
        return None
    if subresource and subresource not in resource.subresources:
        return None
    if name and resource.namespaced and not namespace:
        return None
    if namespace and not resource.namespaced:
        return None
    return Target(resource, namespace, name, subresource)


def _is_of_namespace(group: str, rest: list[str]) -> bool:
    return not group and len(rest) == 3 and rest[2] == "status"  # noqa: PLR2004
