"""``kubectl mig kueue``: the mapping by which Kueue counts claims for quota.

Kueue 0.19, ``DeviceClassMapping`` in apis/config/v1beta2/configuration_types.go; its limits are in
``validateDeviceClassMappings`` of pkg/config/validation.go. A class that no mapping has makes a
workload inadmissible.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import yaml

from cli.facts import mignodes
from cli.output import CliError, Exit
from cli.session import Session
from cli.site import survey
from dra.claims.classes import DeviceClass, is_generated, read_class
from dra.common.resources import DEVICE_CLASSES, Obj
from dra.gpu.inventory import AllocatorKind
from dra.gpu.names import extended_resource_name

MOST_RESOURCES = 16
MOST_CLASSES = 8
"""Kueue's upper bounds: on mappings (``MOST_RESOURCES``), and on classes in one mapping."""

_SIZE = re.compile(r"mig-(\d+g)\.")
_RESTART = (
    "Kueue reads it when it starts: kubectl rollout restart deployment/kueue-controller-manager"
)
_UNPUBLISHED = (
    "devices that the controller allocates are in no ResourceSlice, where Kueue looks for those of "
    "requests with selectors: name a class instead"
)
_NO_MEMORY = (
    "Kueue reads the memory of devices from ResourceSlices, and no node here publishes any: count "
    "devices (without --by), or have kube-scheduler allocate (the plugin's --allocator=scheduler)"
)


def run(session: Session, *, classes: Sequence[str], by: str) -> int:
    """Print Kueue's configuration for ``classes``; for all generated ones if none is named."""
    found = _classes(session, classes)
    nodes = survey(mignodes(session), (), driver=session.driver).nodes
    allocators = {node.inventory.allocator for node in nodes}
    if by == "memory" and AllocatorKind.SCHEDULER not in allocators:
        raise CliError(Exit.FINDING, _NO_MEMORY)
    made = (
        count_memory(found, session.driver)
        if by == "memory"
        else count_devices(found, session.driver)
    )
    remarks = [_RESTART, *([_UNPUBLISHED] if AllocatorKind.CONTROLLER in allocators else [])]
    if session.out.is_json:
        session.out.json("KueueConfiguration", {"configuration": made, "remarks": remarks})
        return Exit.OK
    for remark in remarks:
        session.out.line(f"# {remark}")
    session.out.document(yaml.safe_dump(made, sort_keys=False))
    return Exit.OK


def _classes(session: Session, names: Sequence[str]) -> list[DeviceClass]:
    """The classes that ``names`` name, sorted by name; all that the controller made without any."""
    known = {o["metadata"]["name"]: o for o in session.api.list(DEVICE_CLASSES).items}
    missing = [name for name in names if name not in known]
    if missing:
        raise CliError(Exit.NOT_FOUND, f"there is no DeviceClass {missing[0]!r}")
    chosen = names or [n for n, o in known.items() if is_generated(o, session.driver)]
    if not chosen:
        raise CliError(
            Exit.NOT_FOUND,
            "the controller has made no DeviceClass: is it running? (kubectl mig doctor)",
        )
    return [read_class(known[name], session.driver) for name in sorted({*chosen})]


def count_devices(classes: Sequence[DeviceClass], driver: str) -> Obj:
    """Configuration that counts the devices of every class as a resource of its own.

    If the classes are too many for Kueue, profiles of equally many compute slices share a resource.
    A class of a profile is counted under the name that limits have for it. Pods that ask by limits
    are counted under that name as well, without a mapping, as their Job states them.

    Raises:
        CliError: the resources are too many even so.
    """
    quotas: dict[str, list[str]] = {_resource(c): [c.name] for c in classes}
    if len(classes) > MOST_RESOURCES:
        quotas = {}
        for name in (c.name for c in classes):
            size = _SIZE.match(name)
            quotas.setdefault(f"{driver}/mig-{size[1]}" if size else name, []).append(name)
    if len(quotas) > MOST_RESOURCES:
        raise CliError(
            Exit.USAGE,
            f"{len(classes)} classes make {len(quotas)} resources, and Kueue takes "
            f"{MOST_RESOURCES}: name those that are used (kubectl mig kueue mig-1g.5gb ...)",
        )
    return _configuration(quotas)


def count_memory(classes: Sequence[DeviceClass], driver: str) -> Obj:
    """Configuration that counts the memory of all classes' devices, of ``driver``, as one resource.

    Raises:
        CliError: the classes are more than Kueue takes in one mapping.
    """
    selector = {"cel": {"expression": f"device.driver == '{driver}'"}}
    counter = {"name": "memory", "driver": driver, "deviceSelector": selector}
    quotas = {f"{driver}/memory": [c.name for c in classes]}
    return _configuration(quotas, sources=[{"counter": counter}])


def _resource(known: DeviceClass) -> str:
    if known.extended_resource or not _SIZE.match(known.name):
        return known.extended_resource or known.name
    return extended_resource_name(known.name.removeprefix("mig-"))


def _configuration(quotas: Mapping[str, list[str]], **sources: object) -> Obj:
    """The part of Kueue's configuration that counts classes as resources."""
    for resource, names in quotas.items():
        if len(names) > MOST_CLASSES:
            raise CliError(
                Exit.USAGE,
                f"{len(names)} classes count as {resource}, and Kueue takes "
                f"{MOST_CLASSES} for one resource: name those that are used (kubectl mig kueue "
                f"{' '.join(names[:2])} ...)",
            )
    mappings = [{"name": r, "deviceClassNames": n, **sources} for r, n in quotas.items()]
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "resources": {"deviceClassMappings": mappings},
    }
