"""Rules for what administrators write: classes of nodes, mig-parted's files, quotas."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from api.errors import InvalidObjectError
from api.nodeclass import KIND as NODE_CLASS
from api.nodeclass import decode_layouts, decode_node_class, is_layouts
from cli.linting.documents import (
    Document,
    Level,
    Path,
    Remark,
    mapping,
    read_text,
    steps,
)
from dra.limits.asks import is_profile
from dra.limits.others import renamed

_AT: Final[Path] = ("spec", "hard")
_DEVICES: Final = "deviceclass.resource.k8s.io/devices"
_MEMORY: Final = re.compile(
    r"nvidia\.com/gpumem(-percentage)?|nvidia\.com/gpucores|"
    r"instaslice\.redhat\.com/accelerator-memory-quota"
)


def check_layouts(document: Document) -> Iterator[Remark]:
    """Findings about a class of nodes, a file of mig-parted's, or a ConfigMap with such files."""
    if document.kind != "ConfigMap":
        yield from _check_file(document, (), document.obj)
        return
    for key, content in mapping(document.obj, "data").items():
        for inner in read_text(document.file, content) if isinstance(content, str) else ():
            if isinstance(inner, Document):
                yield from _check_file(document, ("data", key), inner.obj)


def _check_file(document: Document, at: Path, obj: Any) -> Iterator[Remark]:
    """Findings about a file that is a document, or text in one; none about one of another kind."""
    try:
        if is_layouts(obj):
            layouts, place = decode_layouts(obj), at
        elif isinstance(obj, dict) and obj.get("kind") == NODE_CLASS:
            layouts, place = decode_node_class(obj).layouts, (*at, "layouts")
        else:
            return
    except InvalidObjectError as error:
        where, message = (at, str(error)) if at else (steps(obj, error.path), error.problem)
        yield document.remark(Level.ERROR, where, message)
        return
    slices = [
        (layout, index, name)
        for layout, listed in layouts.items()
        for index, entry in enumerate(listed)
        for name, _ in entry.counts
    ]
    for layout, index, name in slices:
        if "c." in name:  # mig-parted makes these
            message = (
                "compute instances smaller than their GPU instance are not made here: a node with "
                "this layout says that it cannot have it; name the whole profile "
                f"({name.partition('.')[2]})"
            )
            where = (*place, "mig-configs", layout, index, "mig-devices", name)
            yield document.remark(Level.WARNING, where, message)


def check_quota(document: Document) -> Iterator[Remark]:
    """Findings about what a ResourceQuota does not limit once pods have claims."""
    for key, resource in _counted(document):
        if is_profile(resource):
            message = (
                "it counts nothing where the controller allocates, as pods have claims then: "
                f"write {_of_class(resource)}, as kubectl mig convert does"
            )
            yield document.remark(Level.WARNING, (*_AT, key), message)
        elif _MEMORY.fullmatch(resource):
            message = (
                "a quota has no memory of slices: count slices by class, each as "
                f"mig-1g.5gb.{_DEVICES}; those asked for by memory as mig.dra.dev.{_DEVICES}"
            )
            yield document.remark(Level.ERROR, (*_AT, key), message)


def convert_quota(document: Document) -> Iterator[Remark]:
    """Have a ResourceQuota limit devices by DeviceClass instead of MIG resources, in place.

    Yields a remark about each limit that has no such form.
    """
    yield from (each for each in check_quota(document) if each.level is Level.ERROR)
    hard = mapping(document.obj, *map(str, _AT))
    for key, resource in [*_counted(document)]:
        if is_profile(resource):
            hard[_of_class(resource)] = hard.pop(key)


def _counted(document: Document) -> Iterator[tuple[str, str]]:
    """Keys of a ResourceQuota, each with the name that this driver has for what it counts."""
    for key in mapping(document.obj, *map(str, _AT)) if document.kind == "ResourceQuota" else ():
        name = key.removeprefix("requests.").removeprefix("limits.")
        yield key, renamed(name) or name


def _of_class(resource: str) -> str:
    return f"{resource.removeprefix('nvidia.com/')}.{_DEVICES}"
