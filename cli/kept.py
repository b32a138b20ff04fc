"""The part that is kept of the objects that commands and the page list, whatever users write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dra.claims.stored import keep_claim
from dra.common.parts import decoded, shape
from dra.common.resources import (
    EVENTS,
    PODS,
    RESOURCE_CLAIMS,
    Obj,
    Resource,
    at,
    picked,
)
from dra.gangs.membership import read_annotations
from dra.kube.http import Keep, whole
from dra.pods.stored import keep_pod
from dra.pods.stored_volumes import KEPT as KEPT_OF_VOLUMES

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
        shown: Obj = _POD.decode(raw)
        found["status"] |= at(shown, "status", default={})
        if conditions := at(shown, "status", "conditions"):
            found["status"]["conditions"] = [*map(_condition, conditions)]
        bodies = zip(at(found, "spec", "containers"), at(shown, "spec", "containers"), strict=False)
        for body, of in bodies:
            body["image"] = of.get("image", "")[:_TEXT]
            body["args"] = [arg[:_TEXT] for arg in at(of, "args")[:_MOST]]
        if names := at(shown, "metadata", "finalizers")[:_MOST]:
            found["metadata"]["finalizers"] = [name[:_TEXT] for name in names]
        return found

    return {
        RESOURCE_CLAIMS: claim,
        PODS: pod,
        EVENTS: _event,
        **KEPT_OF_VOLUMES,
    }


_POD = msgspec.json.Decoder(
    shape(
        {
            "metadata": {"finalizers": [str]},
            "spec": {"containers": [{"image": str, "args": [str]}]},
            "status": {"conditions": [dict], "extendedResourceClaimStatus": Any},
        }
    )
)


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
