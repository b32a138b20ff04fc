"""Names of classes that were meant to be generated ones, and the nearest that there is. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dra.claims.classes import looks_ours

PROFILE_CLASS = re.compile(r"mig-(\d+)g\.(\d+)gb(\.[a-z]+)*(-me)?")
_PROFILE = re.compile(r"(?:mig[-_.]?)?(\d+)g[-_.]?(\d+)gb?(.*)", re.IGNORECASE)
_SIZE = re.compile(r"(?:mig[-_.]?)?min[-_.]?(\d+)gb?", re.IGNORECASE)


def meant_ours(name: str) -> bool:
    """True if a class that does not exist is called like a generated one, or nearly so."""
    return looks_ours(name) or meant(name) != ""


def meant(name: str) -> str:
    """``mig-1g.5gb`` for ``mig-1g5gb``, as a generated class would be called; empty for others."""
    if size := _SIZE.fullmatch(name):
        return f"mig-min-{size[1]}gb"
    found = _PROFILE.fullmatch(name)
    if found is None or PROFILE_CLASS.fullmatch(name):
        return name if found else ""
    more = re.sub(r"[-+_]", ".", found[3]).strip(".").lower()
    return f"mig-{found[1]}g.{found[2]}gb{'.' * bool(more)}{more}"


def no_such_class(name: str, known: Iterable[str]) -> str:
    """The sentence on a class that is not among those ``known``."""
    nearest = _nearest(meant(name), known)
    asked = f"did you mean {nearest!r}? " if nearest else ""
    return f"DeviceClass {name!r} does not exist; {asked}kubectl get deviceclasses lists all"


def _nearest(name: str, known: Iterable[str]) -> str:
    """The class that has as many compute slices, or nearly, and then about as much memory."""
    alike = [k for k in known if name and meant(k) == k and _is_size(k) == _is_size(name)]
    return min(alike, key=lambda k: (*_apart(k, name), _bare(k) != _bare(name), k), default="")


def _is_size(name: str) -> bool:
    return _SIZE.fullmatch(name) is not None


def _bare(name: str) -> str:
    return re.sub(r"\W", "", name)


def _apart(one: str, other: str) -> list[int]:
    numbers = (map(int, re.findall(r"\d+", each)) for each in (one, other))
    return [abs(a - b) for a, b in zip(*numbers, strict=True)]
