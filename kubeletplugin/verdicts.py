"""Which failures of a Prepare last: no retry helps before somebody does something.

Lasting is what this node, its GPU or the device that was given says; a mistake in the claim itself
follows it wherever it goes and is not for the controller to mend.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

from kubeletplugin.errors import DeviceError, IncompleteError, ModeError, PluginError
from kubeletplugin.nvml.errors import GpuLostError, PermissionDeniedError, UndeliverableError

_LASTING = (
    DeviceError,
    IncompleteError,
    GpuLostError,
    PermissionDeniedError,
    UndeliverableError,
)
_REFUSED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def is_permanent(error: PluginError, *, held: bool = False) -> bool:
    """Whether the claim cannot be prepared here as it is allocated and as the node is.

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


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__
