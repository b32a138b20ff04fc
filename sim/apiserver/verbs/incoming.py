"""Incoming writes: the object that is meant, and the body in the form in which objects are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dra.common.resources import Obj
from sim.apiserver.refusals import errors
from sim.apiserver.schema import models
from sim.apiserver.schema.normalise import normalise

if TYPE_CHECKING:
    from sim.apiserver.schema.resources import ResourceType


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
