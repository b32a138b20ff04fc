"""Today's journal and MigNode with all that they can say: each state, each optional field."""

from __future__ import annotations

from dataclasses import replace

from dra.gpu.geometry import Placement
from dra.gpu.inventory import (
    Answer,
    AnswerState,
    ClaimRef,
    Drain,
    FailedClaim,
    GpuLayout,
    IdleInstance,
    Instance,
    InstanceState,
    Inventory,
    NodeMode,
)
from dra.gpu.shares import UNENFORCED, Share, ShareOffer
from kubeletplugin.journal.entries import Entry, MpsLimits, State
from tests.controller.helpers.objects import gpu
from tests.dra.gpu.test_mignode import INVENTORY
from tests.dra.gpus import facts_to_tell

_MADE = frozenset(State) - {State.INTENT}


def entries() -> tuple[Entry, ...]:
    """One slice in each state, and whole GPUs shared, viewed and with turns."""
    found = [_slice(number, state) for number, state in enumerate(State)]
    found.append(replace(_slice(20, State.INTENT), ahead=True))
    found.append(replace(_slice(24, State.INTENT), told=True, wiped=True))
    found.append(replace(_slice(21, State.CI_DESTROYED), idle=True, layout=True))
    found.append(replace(_slice(22, State.PREPARED), mps=MpsLimits(50, 4096), adopted=True))
    found.append(replace(_slice(26, State.PREPARED), files=("compute", "video")))
    found.append(replace(_slice(23, State.LOST), wiped=True, note="GPU reset"))
    whole = replace(
        _slice(30, State.PREPARED),
        device="gpu-1",
        gpu="GPU-1",
        placement=None,
        profile="",
        profile_id=None,
        gi_id=None,
        ci_id=None,
        mig_uuid="",
    )
    found.append(replace(whole, share=Share(4096, 25, "ns"), share_id="share-1"))
    found.append(replace(_named(whole, 31), view=True))
    shared = replace(_slice(33, State.PREPARED), device="gpu-0-mig-1g5gb-19-4-share")
    found.append(replace(shared, share=Share(1024, 25, "ns"), share_id="share-2"))
    found.append(replace(_named(whole, 32), interval="Long"))
    return tuple(found)


def inventory() -> Inventory:
    """A node with an instance in each state, and all that a MigNode tells besides."""
    first, *others = INVENTORY.gpus
    states = zip(InstanceState, range(7), strict=False)
    held = tuple(
        Instance(
            Placement(start, 1),
            state,
            profile_id=19,
            profile="1g.5gb",
            gpu_instance_id=start,
            compute_instance_id=0,
            uuid=f"MIG-{start}",
            claim=ClaimRef("ns", f"claim-{start}", f"uid-{start}"),
            message="why",
            unhealthy="XID 79",
        )
        for state, start in states
    )
    return replace(
        INVENTORY,
        gpus=(
            replace(
                first,
                **facts_to_tell(first),
                instances=held,
                idle=(IdleInstance(Placement(6, 1), 19, "ns"),),
                layout=GpuLayout("all-1g", (Placement(6, 1),)),
                slice_sharing=ShareOffer(2, "hami-core"),
            ),
            *others,
            gpu(7, mig=False, brand="Nvidia", sharing=ShareOffer(4, UNENFORCED)),
        ),
        drain=Drain(("gpu-1",), "driver 580", "2026-01-01T00:00:00Z"),
        resumed="2026-01-01T00:00:00.000001Z",
        failed_claims=(
            FailedClaim(ClaimRef("ns", "f", "uid-f"), "2026-01-01T00:00:00Z", passing=True),
        ),
        mode=NodeMode("layout", "pending", "all-1g", "why"),
        capabilities=("Reservations",),
        answers=tuple(Answer(f"id-{s.value}", s, "why") for s in AnswerState),
    )


def _slice(number: int, state: State) -> Entry:
    made = state in _MADE
    return Entry(
        claim=ClaimRef("ns", f"claim-{number}", f"uid-{number}"),
        device="gpu-0-mig-1g5gb-19-4",
        state=state,
        gpu="GPU-0",
        boot_id="boot-1",
        pool="node-a",
        requests=("r0", "r1"),
        total=2,
        profile_id=19,
        profile="1g.5gb",
        placement=Placement(4, 1),
        gi_id=7 if made else None,
        ci_id=0 if made else None,
        mig_uuid="MIG-7" if made else "",
        note="why",
    )


def _named(entry: Entry, number: int) -> Entry:
    return replace(entry, claim=ClaimRef("ns", f"claim-{number}", f"uid-{number}"))
