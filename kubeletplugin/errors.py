"""Errors of a claim's Prepare or Unprepare; their text goes to kubelet and into pod events."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from kubeletplugin.nvml.errors import (
    GpuLostError,
    InUseError,
    NvmlError,
    PermissionDeniedError,
    UndeliverableError,
)


class PluginError(Exception):
    """A claim that could not be served; the message names object, blocker and remedy.

    ``passing`` says that the same a little later may succeed, with nothing done by anybody.
    """

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


class StartingError(PluginError):
    """The plugin cannot serve claims yet; says what is missing."""


class ClaimError(PluginError):
    """The claim is replaced, not allocated, not ours, or badly configured."""


class DeviceError(PluginError):
    """The allocated device is not one of this node, or its GPU cannot be used that way now."""


class ModeError(DeviceError):
    """MIG mode of the GPU is off."""


class BusyError(PluginError):
    """The allocated placement is held by another; the text names the holder."""


class HardwareError(PluginError):
    """NVML refused; carries its words."""


class HostError(PluginError):
    """A file or directory of this node cannot be used; names the path."""


class IncompleteError(HostError):
    """No container on this node could use a device; says what is missing, and the remedy."""


class DeadlineError(PluginError):
    """The work was not done in time; it goes on, and a repeated call joins it."""


# A failure lasts by what this node, its GPU or the device that was given says; a mistake in the
# claim itself follows it wherever it goes and is not for the controller to mend.
_LASTING = (
    DeviceError,
    IncompleteError,
    GpuLostError,
    PermissionDeniedError,
    UndeliverableError,
)
_REFUSED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def is_permanent(error: PluginError, *, held: bool = False) -> bool:
    """True if the claim cannot be prepared here as it is allocated and as the node is.

    ``held``: it was prepared here before. Where a reboot took MIG mode as well, its place is kept
    until that is on again; likewise where driver files went meanwhile.
    """
    if error.passing or (held and isinstance(error, ModeError | IncompleteError)):
        return False
    return any(
        isinstance(e, _LASTING) or (isinstance(e, OSError) and e.errno in _REFUSED)
        for e in _causes(error)
    )


def denied_gpu(error: PluginError) -> str:
    """UUID of the GPU on which NVML denied a change for want of permission; empty if it did not."""
    return next((e.gpu for e in _causes(error) if isinstance(e, PermissionDeniedError)), "")


def failing_gpu(error: PluginError) -> str:
    """UUID of the GPU on which NVML refused; empty if that says nothing of the GPU as a whole.

    Processes that hold an instance (InUseError) are some tenant's.
    """
    refusals = (e for e in _causes(error) if isinstance(e, NvmlError))
    of_others = UndeliverableError, InUseError
    return next((e.gpu for e in refusals if not isinstance(e, of_others)), "")


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__
