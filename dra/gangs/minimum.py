"""The number of pods of a gang that are allocated together, at the least."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dra.gangs.membership import (
    NAME_LABEL,
    GangKey,
    GroupRef,
    Membership,
    is_nameless,
)
from dra.gangs.podgroups import GroupKind, PodGroup

MOST_PODS = 400
"""Upper bound on the pods that are allocated together: more take too long to be decided."""

_DIGITS = 6
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Unclear:
    """Fault in what is said of a gang's size, with its remedy."""

    message: str


class PodGroups:
    """Objects that say how large gangs are. ``kinds`` are those that are known in full."""

    def __init__(self) -> None:
        self.kinds: set[GroupKind] = set()
        self._known: dict[tuple[GroupKind, str, str], PodGroup] = {}

    def set(self, group: PodGroup) -> bool:
        """Take an object; False when that is known."""
        key = (group.kind, group.namespace, group.name)
        if self._known.get(key) == group:
            return False
        self._known[key] = group
        return True

    def remove(self, kind: GroupKind, namespace: str, name: str) -> None:
        """An object is gone."""
        self._known.pop((kind, namespace, name), None)

    def find(self, ref: GroupRef) -> int | Unclear:
        """The number that ``ref`` says; 1 where nothing is known of its kind."""
        if ref.kind not in self.kinds:
            return 1
        group = self._known.get((ref.kind, ref.namespace, ref.name))
        what = f"{ref.kind.kind} {ref.namespace}/{ref.name} of {ref.kind.group}"
        if group is None:
            return Unclear(f"{what} does not exist: create it, with {ref.kind.path}")
        if ref.part in group.counts:
            return group.counts[ref.part]
        entries = ", ".join(sorted(group.counts)) or "none"
        return Unclear(f"{what} has no pod group {ref.part!r}; it has {entries}")


def find_minimum(
    membership: Membership, stated: Collection[str | None], groups: PodGroups
) -> int | Unclear:
    """The number of pods of a gang that are allocated together; 1 where each is by itself.

    ``stated`` is what its pods say themselves, None for one that does not.
    """
    gang = membership.gang
    if membership.group is not None:
        found = groups.find(membership.group)
        return found if isinstance(found, Unclear) else _bounded(gang, found)
    if is_nameless(gang):
        return Unclear(
            f"{membership.field} says how many pods belong together, and nothing says which: add "
            f"label {NAME_LABEL} with one value on all of them"
        )
    said = {*stated}
    if None in said:
        return Unclear(
            f"a pod of {gang} has no {membership.field}: set it on each of its pods to the number "
            "that is to be allocated together"
        )
    texts = sorted(text for text in said if text is not None)
    if len(texts) != 1:
        return Unclear(
            f"pods of {gang} differ in {membership.field} ({_listed(texts)}): set the same number "
            "on all of them"
        )
    number = int(texts[0]) if _is_number(texts[0]) else 0
    if number < 1:
        return Unclear(
            f"{membership.field} of {gang} is {texts[0][:20]!r}: set a whole number from 1 to "
            f"{MOST_PODS}"
        )
    return _bounded(gang, number)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS


def _bounded(gang: GangKey, number: int) -> int | Unclear:
    if number <= MOST_PODS:
        return number
    return Unclear(
        f"{gang} needs {number} pods at once, and at most {MOST_PODS} are allocated together: "
        "divide it"
    )


def _listed(texts: list[str]) -> str:
    shown = ", ".join(repr(text[:20]) for text in texts[:_NAMED])
    more = len(texts) - _NAMED
    return f"{shown} and {more} more" if more > 0 else shown
