"""The subresource ``scale``, by which ``kubectl scale`` sets a number of replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dra.common.resources import Obj, at, picked
from sim.apiserver import errors

if TYPE_CHECKING:
    from collections.abc import Callable


_METADATA = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def of(obj: Obj) -> Obj:
    """The Scale of an object."""
    labels = at(obj, "spec", "selector", "matchLabels", default={})
    return {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": picked(obj["metadata"], _METADATA),
        "spec": {"replicas": obj["spec"].get("replicas", 1)},
        "status": {
            "replicas": at(obj, "status", "replicas", default=0),
            "selector": ",".join(f"{key}={text}" for key, text in labels.items()),
        },
    }


def change(body: Any) -> Callable[[Obj], Obj]:
    """Change of an object by a Scale, or a merge patch of one (400 without a number)."""
    count = at(body, "spec", "replicas", default=None) if isinstance(body, dict) else None
    if not isinstance(count, int) or count < 0:
        raise errors.bad_request("spec.replicas: a number of 0 or more is required")
    return lambda live: {**live, "spec": {**live["spec"], "replicas": count}}
