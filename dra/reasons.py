"""Why a claim waits, and the other things that events say. Reasons are for machines: keep them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dra.conditions import PREPARE_FAILED


class Reason(StrEnum):
    """Reasons of the controller's events."""

    ALLOCATED = "Allocated"
    WAITING = "WaitingForSlice"
    NO_SUCH_PROFILE = "NoSuchProfile"
    NO_SUCH_CLASS = "NoSuchDeviceClass"
    BAD_SELECTOR = "InvalidSelector"
    BAD_CONFIG = "InvalidConfig"
    UNSUPPORTED = "UnsupportedRequest"
    MIXED = "MixedDrivers"
    NOTHING_TO_SEE = "NothingToLookAt"
    NEXT_IN_LINE = "NextInLine"
    TAKEN_BACK = "AllocationTakenBack"
    REFUSED = "AllocationRefused"
    PREPARE_FAILED = PREPARE_FAILED
    CLASS_CONFLICT = "DeviceClassConflict"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why something cannot be done, for machines and for people."""

    reason: Reason
    message: str
