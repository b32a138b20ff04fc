"""Records that no claim holds: slices that a layout declares, and places that are suspect.

They stand in the journal under a claim that no API server can have, in a state that any version of
this program removes: a namespace has no dot in its name.
"""

from __future__ import annotations

from dataclasses import replace

from dra.gpu.geometry import Occupant, Placement, Profile
from dra.gpu.inventory import ClaimRef
from dra.gpu.names import MigDevice, mig_device, parse_device
from kubeletplugin.gpus.gpuunit import GpuUnit
from kubeletplugin.journal.entries import LAYOUT, SUSPECT, Entry, State


def intended_entry(unit: GpuUnit, profile: Profile, placement: Placement, *, boot_id: str) -> Entry:
    """The record before a ready slice is made: whatever is found of it is to go."""
    device = mig_device(
        unit.known.number, profile.name, profile_id=profile.id, start=placement.start
    )
    return Entry(
        claim=_nobody(str(device)),
        device=str(device),
        state=State.DESTROYING,
        gpu=unit.uuid,
        boot_id=boot_id,
        profile_id=profile.id,
        profile=profile.name,
        placement=placement,
    )


def ready_entry(entry: Entry, *, gi_id: int | None = None) -> Entry:
    """The record of a ready slice, of which the GPU instance is there and nothing else."""
    left = entry.at(
        State.CI_DESTROYED,
        gi_id=entry.gi_id if gi_id is None else gi_id,
        ci_id=None,
        mig_uuid="",
        idle=True,
    )
    device = _alone(entry.device)
    return _of_nobody(left, _nobody(device))


def suspect_entry(entry: Entry, why: str) -> Entry:
    """The record of a placement that is unavailable until an instance can be made there again."""
    left = entry.at(State.LEFTOVER, gi_id=None, ci_id=None, mig_uuid="", remade=False)
    claim = ClaimRef(SUSPECT, "suspect", f"suspect-{_alone(entry.device)}")
    return replace(_of_nobody(left, claim), note=why)


def _of_nobody(entry: Entry, claim: ClaimRef) -> Entry:
    return replace(
        entry,
        claim=claim,
        device=_alone(entry.device),
        pool="",
        requests=(),
        total=1,
        share=None,
        share_id="",
        mps=None,
        files=(),
    )


def occupant_of(entry: Entry) -> Occupant | None:
    """Part of its GPU that an entry takes; None for a whole GPU."""
    return None if entry.placement is None else Occupant(entry.placement, entry.profile_id)


def is_declared(unit: GpuUnit, entry: Entry) -> bool:
    """True if the layout of a GPU has a slice just where an entry has its own."""
    layout = unit.known.layout
    return layout is not None and occupant_of(entry) in layout.slices


def _alone(device: str) -> str:
    """The name of the slice of which ``device`` may be a share."""
    parsed = parse_device(device)
    return str(replace(parsed, shared=False)) if isinstance(parsed, MigDevice) else device


def _nobody(device: str) -> ClaimRef:
    return ClaimRef(LAYOUT, "ready", f"ready-{device}")
