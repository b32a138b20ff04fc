"""ResourceQuotas over slices, as for other systems."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from cli.linting.documents import Document, Level, Path, Remark
from cli.linting.fields import mapping
from dra.limits.asks import is_profile
from dra.limits.renaming import renamed

_AT: Final[Path] = ("spec", "hard")
_DEVICES: Final = "deviceclass.resource.k8s.io/devices"
_MEMORY: Final = re.compile(
    r"nvidia\.com/gpumem(-percentage)?|nvidia\.com/gpucores|"
    r"instaslice\.redhat\.com/accelerator-memory-quota"
)


def check_quota(document: Document) -> Iterator[Remark]:
    """Findings about a ResourceQuota: what it does not limit once pods have claims."""
    for key in _hard(document):
        resource = _resource(key)
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
    """Have a ResourceQuota count claims by class, in place; says what it cannot count."""
    yield from (each for each in check_quota(document) if each.level is Level.ERROR)
    hard = _hard(document)
    for key in [*hard]:
        if is_profile(_resource(key)):
            hard[_of_class(_resource(key))] = hard.pop(key)


def _hard(document: Document) -> dict[str, Any]:
    return mapping(document.obj, *map(str, _AT)) if document.kind == "ResourceQuota" else {}


def _resource(key: str) -> str:
    """The resource that a key counts, by its name here."""
    name = str(key).removeprefix("requests.").removeprefix("limits.")
    return renamed(name) or name


def _of_class(resource: str) -> str:
    return f"{resource.removeprefix('nvidia.com/')}.{_DEVICES}"
