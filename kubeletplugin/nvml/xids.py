"""XIDs, the error numbers of NVIDIA's kernel driver, and their meaning for a GPU or a slice.

Numbers and actions: https://docs.nvidia.com/deploy/xid-errors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Errors of the program that ran, not of the hardware: what NVIDIA's device plugin ignores too."""

RESET_XIDS = frozenset({46, 48, 62, 64, 79, 95, 119, 120, 140})
"""The GPU stopped, cannot be trusted or fell off the bus: only a reset or a reboot helps.

They concern the whole GPU, whichever slice the driver names.
"""


class Scope(Enum):
    """Part of the node that an XID makes unhealthy."""

    NOTHING = auto()
    SLICE = auto()
    GPU = auto()


@dataclass(frozen=True, slots=True)
class XidRules:
    """``ignored`` XIDs say nothing of the hardware; ``every`` ignores all but those in ``fatal``.

    ``fatal`` ones count in any case.
    """

    ignored: frozenset[int] = APPLICATION_XIDS
    fatal: frozenset[int] = frozenset()
    every: bool = False

    def scope(self, xid: int, *, gi_id: int | None) -> Scope:
        """Scope of an XID; ``gi_id`` None is the whole GPU."""
        if xid not in self.fatal and (self.every or xid in self.ignored):
            return Scope.NOTHING
        return Scope.GPU if gi_id is None or xid in RESET_XIDS else Scope.SLICE


def read_rules(*, ignore: str = "", fatal: str = "") -> XidRules:
    """Rules from comma-separated lists; ``ignore`` adds to the defaults and may be ``all``.

    Raises:
        ValueError: something is not a number; says what.
    """
    every = ignore.strip().lower() == "all"
    added = () if every else _numbers(ignore)
    return XidRules(APPLICATION_XIDS | frozenset(added), frozenset(_numbers(fatal)), every)


def _numbers(text: str) -> Iterable[int]:
    for part in (p.strip() for p in text.split(",")):
        if part and not part.isdecimal():
            raise ValueError(f"{part!r} is not the number of an XID; write them as: 63,74")
        if part:
            yield int(part)
