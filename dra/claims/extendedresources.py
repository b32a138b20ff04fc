"""Extended resources of DeviceClasses, and the class that kube-scheduler takes of several.

It takes the newest, and of two of the same second the first by name. In Kubernetes 1.36 it forgets
a name altogether when a class gives it up, until another class that has it is written again.
"""

from __future__ import annotations

from collections.abc import Iterable

from dra.claims.classes import is_generated
from dra.common.resources import Obj, at


def resource_of(device_class: Obj) -> str:
    """Its ``extendedResourceName``, or nothing."""
    return str(at(device_class, "spec", "extendedResourceName", default=""))


def precedes(one: Obj, other: Obj) -> bool:
    """True if kube-scheduler takes the first of two classes with one name."""
    first, second = (str(each["metadata"].get("creationTimestamp") or "") for each in (one, other))
    if first != second:
        return first > second
    return str(one["metadata"]["name"]) < str(other["metadata"]["name"])


def holders(objects: Iterable[Obj], driver: str) -> dict[str, Obj]:
    """By extended resource, the class of somebody else that has it; of several the one in use."""
    found: dict[str, Obj] = {}
    for obj in objects:
        name = resource_of(obj)
        if (
            name
            and not is_generated(obj, driver)
            and (name not in found or precedes(obj, found[name]))
        ):
            found[name] = obj
    return found


def may_carry(
    resource: str,
    own: Obj | None,
    holder: Obj | None,
    *,
    served: bool,
) -> bool:
    """True if our class, as it is now, is to have the name.

    Where nobody else has it, while kube-scheduler allocates a node. Where a class that came later
    has it, ours keeps what it has: it is out of use, and giving it up would have kube-scheduler
    forget theirs.
    """
    if holder is None:
        return served
    return own is not None and resource_of(own) == resource and precedes(holder, own)
