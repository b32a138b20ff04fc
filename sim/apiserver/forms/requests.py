"""Requests, parsed from their URL: the resource, the object, the subresource, the verb."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from sim.apiserver.refusals import errors
from sim.apiserver.verbs.incoming import Target, WriteOptions

if TYPE_CHECKING:
    from sim.apiserver.schema.resources import Catalogue

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
