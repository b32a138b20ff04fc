"""The part that is kept of the objects that commands and the page list, whatever users write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from api.decoding import decodable
from dra.claims.stored import keep_claim
from dra.common.parts import ABSENT, Part, decode, decoded, text_of
from dra.common.resources import (
    EVENTS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESOURCE_CLAIMS,
    STORAGE_CLASSES,
    Obj,
    Resource,
    at,
    picked,
)
from dra.gangs.membership import read_annotations
from dra.kube.http import Keep, whole
from dra.pods.stored import keep_pod
from dra.pods.stored_volumes import (
    keep_namespace,
    keep_storage_class,
    keep_volume,
    keep_volume_claim,
)

_CONDITION = 2000
"""Characters that are kept of a condition, which an explanation quotes."""

_TEXT = 400
_MOST = 64
"""Arguments of a container and finalizers of a pod that are kept."""
_EVENT = ("source", "reportingComponent", "type", "series", "count", "lastTimestamp", "eventTime")
_ABOUT = ("kind", "name", "namespace", "uid")
_METADATA = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def kept(driver: str) -> Mapping[Resource, Keep]:
    """By resource, what decodes the part that is kept; objects of others are kept whole."""
    annotations = read_annotations(driver)

    def claim(raw: msgspec.Raw) -> Obj:
        found: Obj = decoded(keep_claim(raw, driver))
        return found

    def pod(raw: msgspec.Raw) -> Obj:
        found: Obj = decoded(keep_pod(raw, annotations))
        shown = msgspec.json.decode(raw, type=_Pod)
        status = shown.status or _Status()
        if text := text_of(status.extended_resource_claim_status):
            found["status"]["extendedResourceClaimStatus"] = decode(text)
        if status.conditions:
            found["status"]["conditions"] = [*map(_condition, status.conditions)]
        containers = (shown.spec.containers if shown.spec is not None else None) or ()
        for body, of in zip(at(found, "spec", "containers"), containers, strict=False):
            body["image"] = of.image[:_TEXT]
            body["args"] = [arg[:_TEXT] for arg in (of.args or ())[:_MOST]]
        if shown.metadata is not None and shown.metadata.finalizers:
            names = shown.metadata.finalizers[:_MOST]
            found["metadata"]["finalizers"] = [name[:_TEXT] for name in names]
        return found

    return {
        RESOURCE_CLAIMS: claim,
        PODS: pod,
        EVENTS: _event,
        PERSISTENT_VOLUME_CLAIMS: keep_volume_claim,
        PERSISTENT_VOLUMES: keep_volume,
        STORAGE_CLASSES: keep_storage_class,
        NAMESPACES: keep_namespace,
    }


class _Container(Part):
    image: str = ""
    args: list[str] | None = None


class _Metadata(Part):
    finalizers: list[str] | None = None


class _Spec(Part):
    containers: list[_Container] | None = None


class _Status(Part):
    conditions: list[Obj] | None = None
    extended_resource_claim_status: msgspec.Raw = ABSENT


@decodable
class _Pod(Part):
    metadata: _Metadata | None = None
    spec: _Spec | None = None
    status: _Status | None = None


def _condition(condition: Mapping[str, Any]) -> Obj:
    return {k: v[:_CONDITION] if isinstance(v, str) else v for k, v in condition.items()}


def _event(raw: msgspec.Raw) -> Obj:
    obj = whole(raw)
    about = picked(at(obj, "involvedObject", default={}), _ABOUT)
    return {
        **picked(obj, _EVENT),
        "metadata": picked(obj["metadata"], _METADATA),
        "involvedObject": {key: str(text)[:_TEXT] for key, text in about.items()},
        "message": str(at(obj, "message", default=""))[:_CONDITION],
        "reason": str(at(obj, "reason", default=""))[:_TEXT],
    }
