"""Checks of a GPU before anything is made or given out on it."""

from __future__ import annotations

from collections.abc import Iterable

from dra.gpu.shares import sum_of, why_full
from kubeletplugin.errors import BusyError, DeviceError, ModeError
from kubeletplugin.gpus.known_gpu import KnownGpu
from kubeletplugin.journal.entries import ARRIVING, Entry
from kubeletplugin.nvml.errors import enable_mig


def check_mig(gpu: KnownGpu) -> None:
    """Refuse a GPU on which no slice can be made now.

    Raises:
        DeviceError: says why, and what to do.
    """
    card = gpu.card
    if gpu.unwell:
        raise DeviceError(f"{gpu} cannot be used: {gpu.unwell}")
    if not card.mig_capable:
        raise DeviceError(f"{gpu.name} ({gpu.uuid}, {card.product_name}) has no MIG")
    if not card.mig_enabled:
        raise mode_is_off(gpu)


def mode_is_off(gpu: KnownGpu) -> ModeError:
    """The error of a GPU without MIG mode, with the way to turn it on."""
    return ModeError(f"MIG mode of {gpu} is off; {enable_mig(gpu.uuid, gpu=gpu.name)}")


def check_room(gpu: KnownGpu, entry: Entry, others: Iterable[Entry]) -> None:
    """Refuse a whole GPU that ``others`` have, unless they share it and leave room for ``entry``.

    What is prepared already stays, whatever the node says of sharing since.

    Raises:
        BusyError: says who has it, or what of it is left.
    """
    shares = []
    for other in others:
        if entry.share is None or other.share is None:
            raise BusyError(
                f"{gpu} is held by claim {other.claim} (UID {other.claim.uid}); it is free once "
                "that claim is unprepared"
            )
        shares.append(other.share)
    if entry.share is None or entry.state not in ARRIVING:
        return
    if gpu.sharing is None:
        raise BusyError(f"{gpu} is not shared any more, and the claim was given a part of it")
    why = why_full(sum_of(shares), entry.share, gpu.sharing, gpu.card.memory_mib)
    if why:
        raise BusyError(f"{gpu} has no room for one more claim: {why}")


def check_available(gpu: KnownGpu) -> None:
    """Refuse a GPU that another program manages.

    Raises:
        BusyError: it is at work, and will have ended by itself; or the GPU is released.
        DeviceError: it stays until somebody takes it away.
    """
    if gpu.released:
        raise BusyError(f"{gpu} is {gpu.released}")
    if gpu.conflict is None:
        return
    kind = BusyError if gpu.conflict.passing else DeviceError
    raise kind(f"{gpu} is unavailable: {gpu.conflict.problem}")
