"""XIDs, the error numbers of NVIDIA's kernel driver, and their meaning for a GPU or a slice.

Numbers and actions: https://docs.nvidia.com/deploy/xid-errors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Errors of the program that ran, not of the hardware: what NVIDIA's device plugin ignores too."""

HINTS = frozenset({48, 63, 94, 154})
"""Signs that decide nothing by themselves, whatever the driver.

With 48 (uncorrectable memory error) comes 94 if it was contained, so that only its program ended,
or 95; 63 is a row to be remapped at the next reset, with which programs go on and new ones begin;
154 tells that the recovery action changed, also back to none.
"""

RESET_XIDS = frozenset({46, 62, 64, 79, 95, 119, 120, 140, 143, 158, 167, 168, 171, 172, 173})
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

    ``fatal`` ones count in any case, :data:`HINTS` only then.
    """

    ignored: frozenset[int] = APPLICATION_XIDS
    fatal: frozenset[int] = frozenset()
    every: bool = False

    def scope(self, xid: int, *, gi_id: int | None, judged: bool = False) -> Scope:
        """Scope of an XID; ``gi_id`` None is the whole GPU.

        ``judged``: the driver says itself what is to be done about the GPU, so that XIDs say
        something of slices alone.
        """
        if xid not in self.fatal:
            if self.every or xid in self.ignored or xid in HINTS:
                return Scope.NOTHING
            if judged:
                return Scope.NOTHING if gi_id is None else Scope.SLICE
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
