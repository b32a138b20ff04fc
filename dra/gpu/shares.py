"""Shares of a GPU or slice that several claims have at a time, each with memory and cores. Pure.

The words are those of consumable capacity (KEP-5075): where kube-scheduler allocates, it counts
``consumedCapacity`` of one device; where the controller does, it counts the same by these rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ANY_TENANT = "*"
"""The tenant of claims whose class lets them share with other namespaces."""

ALL_CORES = 100
"""Cores are counted in hundredths of the GPU or slice."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Limits of a share as a claim states them; None where it states none.

    ``anybody``: its class lets claims of other namespaces share the device.
    """

    memory_mib: int | None = None
    cores: int | None = None
    anybody: bool = False

    @property
    def stated(self) -> bool:
        """True if it states the size of the share, which only makes sense for a shared device."""
        return self.memory_mib is not None or self.cores is not None


NO_ASK = Ask()


@dataclass(frozen=True, slots=True)
class Share:
    """Part of a GPU or slice that a claim has.

    ``cores`` 0: not limited, and none are set aside for it. ``tenant``: its namespace, or
    ``ANY_TENANT``.
    """

    memory_mib: int
    cores: int
    tenant: str


@dataclass(frozen=True, slots=True, order=True)
class SharesHeld:
    """Sum of the shares of one GPU or slice, which all have the same tenant."""

    count: int = 0
    memory_mib: int = 0
    cores: int = 0
    tenant: str = ""

    def add(self, share: Share) -> SharesHeld:
        """The sum with ``share`` added, whether it fits or not."""
        return SharesHeld(
            self.count + 1,
            self.memory_mib + share.memory_mib,
            self.cores + share.cores,
            share.tenant,
        )


NONE_HELD = SharesHeld()


def share_of(ask: Ask, shares: int, memory_mib: int, namespace: str) -> Share:
    """The share that a claim of ``namespace`` has of a GPU or slice with ``memory_mib``.

    ``shares``: number of claims that may have it at the same time. If ``ask`` states no memory, it
    is the device's memory divided by that.
    """
    memory = memory_mib // shares if ask.memory_mib is None else ask.memory_mib
    tenant = ANY_TENANT if ask.anybody else namespace
    return Share(memory, ask.cores or 0, tenant)


def sum_of(shares: Iterable[Share]) -> SharesHeld:
    """The sum of ``shares``."""
    held = NONE_HELD
    for share in shares:
        held = held.add(share)
    return held


def why_full(held: SharesHeld, share: Share, shares: int, memory_mib: int) -> str:
    """Reason why a device with ``memory_mib`` has no room for one more share; empty if it has.

    The names of others' namespaces are not told.
    """
    if held.count >= shares:
        return f"all {shares} shares are in use"
    if held.count and held.tenant != share.tenant:
        return (
            "its shares are another namespace's: a class with share.tenants any is needed on both "
            "sides"
        )
    left = memory_mib - held.memory_mib
    if share.memory_mib > left:
        return f"{left} of {memory_mib} MiB are left, {share.memory_mib} are asked for"
    if held.cores + share.cores > ALL_CORES:
        return (
            f"{ALL_CORES - held.cores} of {ALL_CORES} % of the cores are left, "
            f"{share.cores} are asked for"
        )
    return ""
