"""Sharing of one device by several processes: the field ``sharing`` of an opaque configuration."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec

Strategy = Literal["None", "TimeSlicing", "MPS"]
Interval = Literal["Default", "Short", "Medium", "Long"]

_MEMORY: Final = re.compile(r"([1-9][0-9]{0,6})([MG])i")
_MEBIBYTES: Final = {"M": 1, "G": 1024}
_ALL: Final = 100


class TimeSlicingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Turns of the processes on a whole GPU, by the name that the driver has for their length."""

    interval: Interval = "Default"


class MpsConfig(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True
):
    """Limits of each client of a claim's MPS daemon.

    ``active_thread_percentage`` is the share of the multiprocessors, of all by default.
    ``pinned_device_memory_limit`` is a number of ``Mi`` or ``Gi``, without a limit if empty.
    """

    active_thread_percentage: Annotated[int, msgspec.Meta(ge=1, le=_ALL)] = _ALL
    pinned_device_memory_limit: str = ""

    @property
    def memory_mebibytes(self) -> int | None:
        """The limit of memory in MiB; None without one."""
        found = _MEMORY.fullmatch(self.pinned_device_memory_limit)
        return int(found[1]) * _MEBIBYTES[found[2]] if found else None

    @property
    def limits_threads(self) -> bool:
        """True if a client gets less than all multiprocessors."""
        return self.active_thread_percentage < _ALL


class SharingConfig(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True
):
    """The strategy, and the settings of the one that is chosen."""

    strategy: Strategy
    time_slicing: TimeSlicingConfig = TimeSlicingConfig()
    mps: MpsConfig = MpsConfig()


NOT_SHARED: Final = SharingConfig(strategy="None")

SLICES_TAKE_TURNS: Final = (
    "NVIDIA's driver sets the length of turns for whole GPUs only, and processes on one slice take "
    "turns without any setting: leave sharing out and let the pods name the same ResourceClaim, "
    "choose MPS, or ask for a whole GPU (class gpu.dra.dev) with kind GpuConfig; allowed for "
    "slices are: None, MPS"
)


def find_problem(kind: str, sharing: SharingConfig) -> tuple[str, str]:
    """Path and text of what is wrong with ``sharing`` of a configuration of ``kind``.

    Both are empty if nothing is.
    """
    if kind == "MigDeviceConfig" and sharing.strategy == "TimeSlicing":
        return "sharing.strategy", SLICES_TAKE_TURNS
    settings = (
        ("timeSlicing", "TimeSlicing", sharing.time_slicing != TimeSlicingConfig()),
        ("mps", "MPS", sharing.mps != MpsConfig()),
    )
    for field, strategy, is_set in settings:
        if is_set and sharing.strategy != strategy:
            problem = (
                f"it is for strategy {strategy!r}, and sharing.strategy is {sharing.strategy!r}; "
                f"leave it out, or choose {strategy!r}"
            )
            return f"sharing.{field}", problem
    limit = sharing.mps.pinned_device_memory_limit
    if limit and sharing.mps.memory_mebibytes is None:
        return (
            "sharing.mps.pinnedDeviceMemoryLimit",
            f"{limit[:40]!r} is no whole number of Mi or Gi, such as 512Mi or 8Gi",
        )
    return "", ""
