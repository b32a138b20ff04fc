"""Entries of the journal: one device of one claim, and the step that it has reached.

Ready slices of a layout and suspect placements have entries too, under the name of a claim that
cannot exist: its namespace has a dot in its name.
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

    While it is made: ``intent`` (no instance is known to exist), ``gi-created`` (the GPU instance
    exists), ``ci-created`` (the compute instance too), ``prepared`` (kubelet was told of it, or may
    have been). ``lost``: it was prepared, and is gone from the hardware.

    While it is removed: ``destroying``, ``ci-destroyed`` (only the GPU instance exists). If the
    removal failed, the placement stays unavailable: ``leftover`` after an Unprepare, ``orphan``
    after a failed Prepare, ``tombstone`` while the GPU is lost or not in the node.
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
"""States of a device that is half made: kubelet has not been told."""
HELD = frozenset({State.PREPARED, State.LOST})
"""States of a device of which kubelet has been told."""
LEAVING = frozenset(State) - ARRIVING - HELD
"""States of a device that is to be removed; its placement is unavailable until it is gone."""

EntryKey = tuple[str, str]
SUSPECT = "mig.suspect"
"""Namespace in entries of suspect placements, which a GPU may still hold (``Entry.suspect``)."""

LAYOUT = "mig.layout"
"""Namespace in entries of ready slices: a layout declares them, and no claim holds them."""

GONE = "the slice is gone from the hardware"
"""Note of an entry in state ``lost``."""


class MpsLimits(NamedTuple):
    """Limits of each client of a claim's MPS daemon; None is no limit.

    ``threads``: percentage of active threads. ``mebibytes``: device memory in MiB.
    """

    threads: int | None = None
    mebibytes: int | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One device of one claim. The entry of a whole GPU has no profile, placement and ids.

    ``gpu``: UUID of the GPU. ``boot_id``: boot in which the instance was made; in another boot
    ``gi_id`` and ``ci_id`` mean nothing. ``requests``: base names of the claim's requests that the
    device serves. ``total``: number of devices that the claim has on this node. ``note``: text on
    why the entry is in its state. ``view``: the device is a whole GPU with adminAccess, of which
    the claim holds nothing. ``interval``: time slice set on a whole GPU for it, or empty.

    ``share``: amounts of a shared GPU or slice; None if the claim has the device alone. Each claim
    that shares a slice has its own entry, with the same instance ids and UUID. ``share_id``: tells
    several shares of one claim apart. ``mps``: limits of MPS clients; None without a daemon.

    ``early``: the device was made before kubelet asked for it, and kubelet has not asked yet.
    ``remade``: the device was prepared before and is being made again; if that is undone, the entry
    becomes ``lost`` and stays until Unprepare. ``wiped``: the device was lost by a GPU reset or
    driver reload, with all others on the GPU. ``idle``: only the GPU instance is left, kept for
    another claim.
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

    @property
    def key(self) -> EntryKey:
        """Claim UID and device name, with the id of its share if it has one."""
        device = f"{self.device}/{self.share_id}" if self.share_id else self.device
        return (self.claim.uid, device)

    @property
    def kubelet_knows(self) -> bool:
        """True if kubelet was told of the device, and may give it to containers."""
        return self.state in HELD or self.remade

    @property
    def ready(self) -> bool:
        """True if the entry is of a ready slice: a layout declares it, and no claim holds it."""
        return self.idle and self.claim.namespace == LAYOUT

    @property
    def suspect(self) -> bool:
        """True if the entry is of no claim, but of a placement where a removal failed.

        NVML lists no instance at the placement, but the GPU's firmware (GSP) may still have one: a
        GPU instance is deleted on the CPU first (open-gpu-kernel-modules, kernel_mig_manager.c).
        """
        return self.claim.namespace == SUSPECT

    def at(self, state: State, *, note: str = "", **changes: Any) -> Entry:
        """This entry in another state, with the fields that follow from that.

        ``ci_id`` becomes None when a half-made device is to be removed: its compute instance may or
        may not exist.
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
        """Entry in state ``lost``, to be recorded once a ``remade`` entry's slice is gone.

        None for other entries: those are to be removed from the journal.
        """
        if not self.remade:
            return None
        nothing = {"gi_id": None, "ci_id": None, "mig_uuid": ""}
        return self.at(State.LOST, note=GONE, wiped=self.wiped, **nothing)

    def holder(self) -> str:
        """Text that names the holder of the placement, for an error."""
        if self.ready:
            return f"a ready slice of the node's layout ({self.device})"
        why = f": {self.note}" if self.note else ""
        if self.suspect:
            return f"nobody, and not free{why}"
        return f"claim {self.claim} (UID {self.claim.uid}, {self.device}, {self.state.value}{why})"


def share_slice(entry: Entry, other: Entry) -> bool:
    """True if two entries are shares of the same slice, whether or not it is made."""
    places = {(e.gpu, e.profile_id, e.placement) for e in (entry, other)}
    return (
        entry.key != other.key
        and entry.placement is not None
        and len(places) == 1
        and entry.share is not None
        and other.share is not None
    )


def complete(entries: Iterable[Entry]) -> bool:
    """True if ``entries`` are all devices of their claim on this node, and all are prepared."""
    known = list(entries)
    return bool(known) and all(e.state is State.PREPARED and e.total == len(known) for e in known)


def occupant_of(entry: Entry) -> Occupant | None:
    """Placement and profile that an entry takes on its GPU; None for a whole GPU."""
    return None if entry.placement is None else Occupant(entry.placement, entry.profile_id)


def intended_entry(
    gpu: str, number: int, profile: Profile, placement: Placement, *, boot_id: str
) -> Entry:
    """Entry to write before a ready slice of a layout is made, in state ``destroying``.

    After a crash, an instance found for this entry is removed. ``number``: the one in the GPU's
    name.
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
    """Entry of a ready slice, of which only the GPU instance exists."""
    bare = entry.at(State.CI_DESTROYED, ci_id=None, mig_uuid="", idle=True)
    return replace(bare, **_of_nobody(entry, LAYOUT, "ready"))


def suspect_entry(entry: Entry, why: str) -> Entry:
    """Entry of a suspect placement, unavailable until an instance can be made there again."""
    left = entry.at(State.LEFTOVER, note=why, gi_id=None, ci_id=None, mig_uuid="", remade=False)
    return replace(left, **_of_nobody(entry, SUSPECT, "suspect"))


def _of_nobody(entry: Entry, namespace: str, name: str) -> dict[str, Any]:
    device = _unshared(entry.device)
    claim = ClaimRef(namespace, name, f"{name}-{device}")
    no_share = {"share": None, "share_id": "", "mps": None}
    return {"claim": claim, "device": device, "pool": "", "requests": (), "total": 1, **no_share}


def _unshared(device: str) -> str:
    """Name of the slice of ``device``, which may be the name of a share of it."""
    parsed = parse_device(device)
    return str(replace(parsed, shared=False)) if isinstance(parsed, MigDevice) else device
