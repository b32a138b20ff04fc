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
    """A claim that could not be served; the message names the object, the obstacle and the remedy.

    ``passing``: the same call may succeed a little later, although nobody does anything.
    """

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


class StartingError(PluginError):
    """The plugin cannot serve claims yet; the message says what is missing."""


class ClaimError(PluginError):
    """The claim was replaced, is not allocated, is not ours, or is badly configured."""


class DeviceError(PluginError):
    """The node has no such device, or its GPU cannot be used in that way now."""


class ModeError(DeviceError):
    """MIG mode of the GPU is off."""


class BusyError(PluginError):
    """The allocated placement is held by somebody else; the message names the holder."""


class HardwareError(PluginError):
    """NVML refused; the message has NVML's text."""


class HostError(PluginError):
    """A file or directory of this node cannot be used; the message names its path."""


class IncompleteError(HostError):
    """No container on this node could use a device; the message names the lack and the remedy."""


class DeadlineError(PluginError):
    """The work for a call was not done in time; the work goes on, and a repeated call joins it."""


# Causes for which a failure lasts: they lie in this node, its GPU or the allocated device. A
# mistake in the claim is none of them: on any other device the claim would fail in the same way.
_LASTING = (
    DeviceError,
    IncompleteError,
    GpuLostError,
    PermissionDeniedError,
    UndeliverableError,
)
_REFUSED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def is_permanent(error: PluginError, *, held: bool = False) -> bool:
    """True if the claim cannot be prepared with its present allocation and this state of the node.

    ``held``: the claim was prepared here before. Such a claim keeps its allocation while MIG mode,
    lost at a reboot, is off, and while driver files are missing.
    """
    if error.passing or (held and isinstance(error, ModeError | IncompleteError)):
        return False
    return any(
        isinstance(e, _LASTING) or (isinstance(e, OSError) and e.errno in _REFUSED)
        for e in _causes(error)
    )


def denied_gpu(error: PluginError) -> str:
    """UUID of the GPU that NVML did not let this program change; empty if that is not the cause."""
    return next((e.gpu for e in _causes(error) if isinstance(e, PermissionDeniedError)), "")


def failing_gpu(error: PluginError) -> str:
    """UUID of the GPU on which NVML refused; empty if the error is not about the GPU as a whole.

    Two errors are not: a profile that cannot be had (UndeliverableError), and processes of a tenant
    that hold an instance (InUseError).
    """
    refusals = (e for e in _causes(error) if isinstance(e, NvmlError))
    of_others = UndeliverableError, InUseError
    return next((e.gpu for e in refusals if not isinstance(e, of_others)), "")


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__
