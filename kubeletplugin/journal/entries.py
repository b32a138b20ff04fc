"""Entries of the journal: one device of one claim, and the step that it has reached.

Slices that a layout declares and places that are suspect stand there under a claim that no API
server can have: a namespace has no dot in its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from dra.gpu.geometry import Occupant, Placement, Profile
from dra.gpu.inventory import ClaimRef
from dra.gpu.names import MigDevice, mig_device, parse_device
from dra.gpu.shares import Share


class State(StrEnum):
    """Step that a device has reached, while it is made or removed.

    On the way in: ``intent`` (nothing on the hardware yet, or nothing known of it), ``gi-created``,
    ``ci-created``, ``prepared`` (kubelet has been told, or may be). ``lost``: it was prepared, and
    somebody or a reset took it from the hardware.

    On the way out: ``destroying``, ``ci-destroyed`` (the GPU instance is left). What could not be
    removed on the spot stays unavailable: ``leftover`` after an Unprepare, ``orphan`` after a
    Prepare that failed, ``tombstone`` while its GPU is lost.
    """

    INTENT = "intent"
    GI_CREATED = "gi-created"
    CI_CREATED = "ci-created"
    PREPARED = "prepared"
    LOST = "lost"
    DESTROYING = "destroying"
    CI_DESTROYED = "ci-destroyed"
    LEFTOVER = "leftover"
    ORPHAN = "orphan"
    TOMBSTONE = "tombstone"


ARRIVING = frozenset({State.INTENT, State.GI_CREATED, State.CI_CREATED})
"""Half made: kubelet has not been told."""
HELD = frozenset({State.PREPARED, State.LOST})
"""Kubelet has been told."""
LEAVING = frozenset(State) - ARRIVING - HELD
"""To be removed; the placement is unavailable until it is."""

EntryKey = tuple[str, str]
SUSPECT = "mig.suspect"
"""Namespace of records of places that a GPU may still hold; none of an API server has a dot."""

LAYOUT = "mig.layout"
"""Namespace of records of slices that a layout declares and no claim holds."""

GONE = "the slice is gone from the hardware"
"""Note of an entry that is lost."""


class MpsLimits(NamedTuple):
    """Limits of each client of a claim's MPS daemon: a percentage, and MiB; None is no limit."""

    threads: int | None = None
    mebibytes: int | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One device of one claim. A whole GPU has neither profile nor placement nor ids.

    ``requests`` are the claim's base request names that it serves; ``total`` is how many devices
    the claim has on this node. ``boot_id`` is that of the boot in which the instance was made: ids
    mean nothing in another. ``note`` says why the entry is in its state. A ``view`` looks at a
    whole GPU and holds nothing of it (adminAccess). ``interval`` is the length of turns set on a
    whole GPU for it, or empty.
    ``share``: what it has of a whole GPU or slice that several claims may have, None of one that it
    has alone; ``share_id`` tells several shares of one claim apart. Of a slice that is shared each
    claim has an entry, with the same ids and UUID.
    ``mps`` are the limits of the clients of its MPS daemon, None without a daemon.

    ``early``: made before kubelet asked for it, which has not asked yet. ``remade``: it was
    prepared before, and is made again or was to be: what undoes that leaves it lost, until kubelet
    takes it back. ``wiped``: lost to a GPU reset or driver reload, together with everything else on
    the GPU. ``idle``: its GPU instance alone is left, kept for another claim.

    ``files``: what of the CDI spec that all claims have in common kubelet was told with it, by
    name; kubelet keeps that, and a record without was told nothing but the claim's own.
    """

    claim: ClaimRef
    device: str
    state: State
    gpu: str
    boot_id: str
    pool: str = ""
    requests: tuple[str, ...] = ()
    total: int = 1
    profile_id: int | None = None
    profile: str = ""
    placement: Placement | None = None
    gi_id: int | None = None
    ci_id: int | None = None
    mig_uuid: str = ""
    note: str = ""
    wiped: bool = False
    view: bool = False
    interval: str = ""
    share: Share | None = None
    share_id: str = ""
    mps: MpsLimits | None = None
    remade: bool = False
    early: bool = False
    idle: bool = False
    files: tuple[str, ...] = ()

    @property
    def key(self) -> EntryKey:
        """Claim UID and device name, with the id of its share if it has one."""
        device = f"{self.device}/{self.share_id}" if self.share_id else self.device
        return (self.claim.uid, device)

    @property
    def kubelet_knows(self) -> bool:
        """True if kubelet was told of it, and may use it."""
        return self.state in HELD or self.remade

    @property
    def ready(self) -> bool:
        """True if it is a slice of a layout that nobody holds."""
        return self.idle and self.claim.namespace == LAYOUT

    @property
    def suspect(self) -> bool:
        """True if it stands for no claim, but for a place where a removal failed.

        NVML lists no instance there, and the GPU's firmware (GSP) may keep one: a GPU instance is
        deleted on the CPU's side first (open-gpu-kernel-modules, kernel_mig_manager.c).
        """
        return self.claim.namespace == SUSPECT

    def at(self, state: State, *, note: str = "", **changes: Any) -> Entry:
        """This entry in another state.

        Of what is half made and to go it is not known whether its compute instance is there.
        """
        half_made = self.state in ARRIVING
        remade = state not in HELD and (self.remade or (state in ARRIVING and self.state in HELD))
        kept = {
            "ci_id": None if half_made and state in LEAVING else self.ci_id,
            "remade": remade,
            "wiped": self.wiped and remade,
            "early": self.early and state in ARRIVING,
            "idle": self.idle and state is State.CI_DESTROYED,
        }
        return replace(self, state=state, note=note, **kept | changes)

    def gone(self) -> Entry | None:
        """This entry once nothing of its slice is left; None if it is to be forgotten."""
        if not self.remade:
            return None
        nothing = {"gi_id": None, "ci_id": None, "mig_uuid": ""}
        return self.at(State.LOST, note=GONE, wiped=self.wiped, **nothing)

    def holder(self) -> str:
        """Holder of the placement, in words for an error."""
        if self.ready:
            return f"a ready slice of the node's layout ({self.device})"
        why = f": {self.note}" if self.note else ""
        if self.suspect:
            return f"nobody, and not free{why}"
        return f"claim {self.claim} (UID {self.claim.uid}, {self.device}, {self.state.value}{why})"


def share_slice(entry: Entry, other: Entry) -> bool:
    """True if two records are of claims that have one slice together, or may be."""
    places = {(e.gpu, e.profile_id, e.placement) for e in (entry, other)}
    return (
        entry.key != other.key
        and entry.placement is not None
        and len(places) == 1
        and entry.share is not None
        and other.share is not None
    )


def complete(entries: Iterable[Entry]) -> bool:
    """True if these are all the devices that their claim has on this node, and prepared."""
    known = list(entries)
    return bool(known) and all(e.state is State.PREPARED and e.total == len(known) for e in known)


def occupant_of(entry: Entry) -> Occupant | None:
    """Part of its GPU that an entry takes; None for a whole GPU."""
    return None if entry.placement is None else Occupant(entry.placement, entry.profile_id)


def intended_entry(
    gpu: str, number: int, profile: Profile, placement: Placement, *, boot_id: str
) -> Entry:
    """The record before a ready slice of a layout is made: whatever is found of it is to go.

    ``number`` is that in the GPU's name.
    """
    device = mig_device(number, profile.name, profile_id=profile.id, start=placement.start)
    return Entry(
        claim=ClaimRef(LAYOUT, "ready", f"ready-{device}"),
        device=str(device),
        state=State.DESTROYING,
        gpu=gpu,
        boot_id=boot_id,
        profile_id=profile.id,
        profile=profile.name,
        placement=placement,
    )


def ready_entry(entry: Entry) -> Entry:
    """The record of a ready slice, of which the GPU instance is there and nothing else."""
    device = _unshared(entry.device)
    return replace(
        entry.at(State.CI_DESTROYED, ci_id=None, mig_uuid="", idle=True),
        **_of_nobody(ClaimRef(LAYOUT, "ready", f"ready-{device}"), device),
    )


def suspect_entry(entry: Entry, why: str) -> Entry:
    """The record of a placement that is unavailable until an instance can be made there again."""
    device = _unshared(entry.device)
    return replace(
        entry.at(State.LEFTOVER, note=why, gi_id=None, ci_id=None, mig_uuid="", remade=False),
        **_of_nobody(ClaimRef(SUSPECT, "suspect", f"suspect-{device}"), device),
    )


def _of_nobody(claim: ClaimRef, device: str) -> dict[str, Any]:
    no_share = {"share": None, "share_id": "", "mps": None, "files": ()}
    return {"claim": claim, "device": device, "pool": "", "requests": (), "total": 1, **no_share}


def _unshared(device: str) -> str:
    """The name of the slice of which ``device`` may be a share."""
    parsed = parse_device(device)
    return str(replace(parsed, shared=False)) if isinstance(parsed, MigDevice) else device
