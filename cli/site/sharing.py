"""Sharing of a device in words: its pods, the strategy, the limits. Pure."""

from __future__ import annotations

from typing import Any

from cli.site.occupancy import Slot
from dra.claims.sharing import TIME_SLICING, Sharing

_NAMED = 4


def is_shared(slot: Slot) -> bool:
    """True if several may use the device, by shares, a strategy, or a claim of several pods."""
    strategy = slot.sharing.config.strategy
    return slot.share is not None or strategy != "None" or len(slot.pods) > 1


def sharers(slot: Slot) -> str:
    """Namespace and pods of the claim that has a slot, the first few by name."""
    if slot.claim is None or len(slot.pods) < 2:  # noqa: PLR2004 - one is no list
        return slot.owner
    named, more = ", ".join(slot.pods[:_NAMED]), len(slot.pods) - _NAMED
    return f"{slot.claim.namespace}/{named}{f' and {more} more' if more > 0 else ''}"


def terms(slot: Slot) -> str:
    """The claim's part of its device, the strategy and what each process may have of it."""
    share, config = slot.share, slot.sharing.config
    found = []
    if share is not None:
        found.append(f"{share.memory_mib} MiB")
        if share.cores:
            found.append(f"{share.cores} % of the cores")
    if slot.sharing.by_mps:
        limits = []
        if config.mps.limits_threads:
            limits.append(f"{config.mps.active_thread_percentage} % of the multiprocessors")
        if config.mps.memory_mebibytes is not None:
            limits.append(f"{config.mps.memory_mebibytes} MiB")
        found.append(f"MPS, each process {' and '.join(limits) or 'without limits of its own'}")
    elif config.strategy == TIME_SLICING:
        found.append(f"TimeSlicing, {config.time_slicing.interval} turns")
    elif share is None:
        found.append("in turns, without limits")
    return "  ".join(found)


def sharing_json(sharing: Sharing) -> dict[str, Any]:
    """Strategy and settings under the names that users write; empty without a strategy."""
    config = sharing.config
    if sharing.by_mps:
        settings: dict[str, Any] = {
            "mps": {
                "activeThreadPercentage": config.mps.active_thread_percentage,
                "pinnedDeviceMemoryLimit": config.mps.pinned_device_memory_limit,
            }
        }
    elif config.strategy == TIME_SLICING:
        settings = {"timeSlicing": {"interval": config.time_slicing.interval}}
    else:
        return {}
    return {"sharing": {"strategy": config.strategy, **settings}}
