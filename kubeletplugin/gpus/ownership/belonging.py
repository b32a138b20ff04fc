"""Rules by which an instance counts as the one that a journal entry stands for.

Boot, GPU, profile, placement and ids agree already: without that there is nothing to judge. None of
it proves anything, since places and ids are given again. Nor does an equal UUID of the compute
instance, unless it is a random one: a driver may make UUIDs from the place. What proves is that the
instance was never removed since it was made (see ``entrywatch``). Where nothing proves either way,
it is the entry's as long as its claim is held, for then it is in use; after that it may be
another's, and is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from uuid import UUID

from kubeletplugin.journal.entries import ARRIVING, HELD, State


class Continuity(Enum):
    """Identity of an instance with the one that was made: ``SAME``, ``OTHER``, or not known."""

    SAME = auto()
    OTHER = auto()
    UNKNOWN = auto()


class Inside(Enum):
    """The compute instances in a GPU instance.

    ``NONE``; ``RECORDED``: among them the one whose UUID is on record; ``STRANGE``: one other;
    ``SEVERAL``: others.
    """

    NONE = auto()
    RECORDED = auto()
    STRANGE = auto()
    SEVERAL = auto()


@dataclass(frozen=True, slots=True)
class Evidence:
    """Facts about an instance whose place and ids are those of an entry.

    ``state``, ``has_gi_id``, ``has_ci_id`` and ``has_uuid`` are the entry's. ``gpu_instance`` and
    ``compute_instance`` say whether they were removed since they were made. ``unique``: no driver
    gives such a UUID twice. ``has_no_compute_instance``: this process has destroyed the compute
    instance. ``busy``: processes are seen in it. ``blind``: processes cannot be seen here.
    """

    state: State
    inside: Inside
    has_gi_id: bool = True
    has_ci_id: bool = True
    has_uuid: bool = True
    gpu_instance: Continuity = Continuity.UNKNOWN
    compute_instance: Continuity = Continuity.UNKNOWN
    unique: bool = False
    has_no_compute_instance: bool = False
    busy: bool = False
    blind: bool = False


class Doubt(Enum):
    """Reasons why an instance may be another's; a message puts the value after "but"."""

    REMADE = "it was removed and made anew since"
    ANYBODYS = (
        "whoever makes an instance there may get the same UUID, its claim is not held any more, "
        "and this program was restarted meanwhile"
    )
    WAS_GONE = "it was seen gone since, and whoever makes an instance there may get the same UUID"
    BARE = "its compute instance is not in it"
    STRANGE = "another compute instance is in it"
    UNSEEN = (
        "a compute instance is in it that nobody was told of, and whether processes are in that "
        "cannot be seen"
    )
    BUSY = "a compute instance is in it that nobody was told of, and processes are in that"


_UNHELD = frozenset({State.LEFTOVER, State.ORPHAN, State.TOMBSTONE})
"""Kubelet has been told that it is gone, or never that it was there."""


def doubt(known: Evidence) -> Doubt | None:
    """The reason why the instance may be another's; None if it counts as the entry's."""
    if known.gpu_instance is Continuity.OTHER:
        return Doubt.REMADE
    if known.inside is Inside.RECORDED:
        return _same_uuid(known)
    if known.inside is Inside.NONE:
        return _bare(known)
    return _strange(known)


def _same_uuid(known: Evidence) -> Doubt | None:
    if known.compute_instance is Continuity.OTHER:
        return Doubt.REMADE
    if known.unique or known.compute_instance is Continuity.SAME:
        return None
    if known.state is State.LOST:
        return Doubt.WAS_GONE
    return Doubt.ANYBODYS if known.state in _UNHELD else None


def _bare(known: Evidence) -> Doubt | None:
    # Its id is taken off the record before it is destroyed, but for what is half made.
    expected = not known.has_ci_id and known.state not in HELD
    left = known.state in {State.CI_DESTROYED, *ARRIVING}
    return None if expected or left or known.has_no_compute_instance else Doubt.BARE


def _strange(known: Evidence) -> Doubt | None:
    one_of_ours = known.inside is Inside.STRANGE and known.has_gi_id and not known.has_uuid
    if not one_of_ours or known.state is State.CI_DESTROYED:
        return Doubt.STRANGE
    # Ended between making a compute instance and recording it: then nobody was told of it.
    if known.blind and known.gpu_instance is not Continuity.SAME:
        return Doubt.UNSEEN
    return Doubt.BUSY if known.busy else None


def is_unique(uuid: str) -> bool:
    """True if the UUID of a MIG device is random, so that no driver gives it twice.

    Those of version 5 are made from something by hashing, which may be the place.
    """
    try:
        return UUID(uuid.removeprefix("MIG-")).version == 4  # noqa: PLR2004 - RFC 9562: random
    except ValueError:
        return False
