"""``kubectl mig kueue``: the mapping by which Kueue counts claims for quota."""

from __future__ import annotations

import argparse

import yaml

from cli.shell.exits import CliError, Exit
from cli.shell.session import Session
from cli.site.quota import TooManyClassesError, configuration, count_devices, count_memory
from cli.site.reading import inventories, mignodes
from dra.claims.classes import DeviceClass, is_generated, read_class
from dra.common.resources import DEVICE_CLASSES
from dra.gpu.inventory import AllocatorKind

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


def run(session: Session, arguments: argparse.Namespace) -> int:
    """Print the part of Kueue's configuration for the generated classes, or for those named."""
    classes = _classes(session, arguments.device_class)
    allocators = {each.allocator for each in inventories(mignodes(session))[0]}
    by_memory = arguments.by == "memory"
    if by_memory and AllocatorKind.SCHEDULER not in allocators:
        raise CliError(Exit.FINDING, _NO_MEMORY)
    try:
        quotas = (count_memory if by_memory else count_devices)(classes, session.driver)
    except TooManyClassesError as error:
        raise CliError(Exit.USAGE, str(error)) from error
    made = configuration(quotas, memory_of=session.driver if by_memory else "")
    remarks = [_RESTART, *([_UNPUBLISHED] if AllocatorKind.CONTROLLER in allocators else [])]
    if session.out.is_json:
        session.out.json("KueueConfiguration", {"configuration": made, "remarks": remarks})
        return Exit.OK
    for remark in remarks:
        session.out.line(f"# {remark}")
    session.out.document(yaml.safe_dump(made, sort_keys=False))
    return Exit.OK


def _classes(session: Session, names: list[str]) -> list[DeviceClass]:
    """The classes that are named, else all that the controller made, by name."""
    objects = session.api.list(DEVICE_CLASSES).items
    known = {o["metadata"]["name"]: o for o in objects}
    missing = [name for name in names if name not in known]
    if missing:
        raise CliError(Exit.NOT_FOUND, f"there is no DeviceClass {missing[0]!r}")
    chosen = names or [n for n, o in known.items() if is_generated(o, session.driver)]
    if not chosen:
        raise CliError(
            Exit.NOT_FOUND,
            "the controller has made no DeviceClass: is it running? (kubectl mig doctor)",
        )
    return [read_class(known[name], session.driver) for name in sorted(dict.fromkeys(chosen))]
