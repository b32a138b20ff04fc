"""Quota of Kueue for our classes: the resources that it counts their claims by.

Kueue 0.19, ``DeviceClassMapping`` in apis/config/v1beta2/configuration_types.go; its limits are in
``validateDeviceClassMappings`` of pkg/config/validation.go. A class that no mapping has makes a
workload inadmissible.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dra.claims.classes import DeviceClass
from dra.common.resources import Obj
from dra.gpu.names import extended_resource_name

MOST_RESOURCES = 16
MOST_CLASSES = 8
"""Upper bounds of Kueue: of mappings, and of classes in one."""

_SIZE = re.compile(r"mig-(\d+g)\.")


class TooManyClassesError(ValueError):
    """The classes are more than Kueue takes; says how many, and the remedy."""


class Quota(NamedTuple):
    """A resource of quota and the classes that it counts, by name."""

    resource: str
    classes: tuple[str, ...]


def count_devices(classes: Sequence[DeviceClass], driver: str) -> list[Quota]:
    """A resource for every class; more than Kueue takes are put together by compute slices.

    A class of a profile is counted under the name that limits have for it: pods that ask by them
    Kueue counts without a mapping, as their Job states them.

    Raises:
        TooManyClassesError: also then they are more.
    """
    alone = [Quota(_resource(c), (c.name,)) for c in classes]
    if len(alone) <= MOST_RESOURCES:
        return alone
    together: dict[str, list[str]] = {}
    for each in classes:
        size = _SIZE.match(each.name)
        together.setdefault(f"{driver}/mig-{size[1]}" if size else each.name, []).append(each.name)
    if len(together) > MOST_RESOURCES:
        raise TooManyClassesError(
            f"{len(classes)} classes make {len(together)} resources, and Kueue takes "
            f"{MOST_RESOURCES}: name those that are used (kubectl mig kueue mig-1g.5gb ...)"
        )
    return [_bounded(Quota(name, tuple(names))) for name, names in together.items()]


def _resource(known: DeviceClass) -> str:
    if known.extended_resource or not _SIZE.match(known.name):
        return known.extended_resource or known.name
    return extended_resource_name(known.name.removeprefix("mig-"))


def count_memory(classes: Iterable[DeviceClass], driver: str) -> list[Quota]:
    """One resource for all: the memory of their devices.

    Raises:
        TooManyClassesError: Kueue takes fewer.
    """
    return [_bounded(Quota(f"{driver}/memory", tuple(c.name for c in classes)))]


def _bounded(quota: Quota) -> Quota:
    if len(quota.classes) > MOST_CLASSES:
        raise TooManyClassesError(
            f"{len(quota.classes)} classes count as {quota.resource}, and Kueue takes "
            f"{MOST_CLASSES} for one resource: name those that are used (kubectl mig kueue "
            f"{' '.join(quota.classes[:2])} ...)"
        )
    return quota


def configuration(quotas: Iterable[Quota], *, memory_of: str = "") -> Obj:
    """The part of Kueue's configuration; ``memory_of`` is the driver whose memory is counted."""
    selector = {"cel": {"expression": f"device.driver == '{memory_of}'"}}
    counter = {"name": "memory", "driver": memory_of, "deviceSelector": selector}
    sources: Obj = {"sources": [{"counter": counter}]} if memory_of else {}
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "resources": {
            "deviceClassMappings": [
                {"name": q.resource, "deviceClassNames": [*q.classes], **sources} for q in quotas
            ]
        },
    }
