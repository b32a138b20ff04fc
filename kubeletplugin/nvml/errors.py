"""Refusals of NVML, in terms that an operator can act on.

::

    NvmlError
     +-- DriverUnavailableError      no library, no driver, or versions that do not match
     +-- PermissionDeniedError       not root and no CAP_SYS_ADMIN
     +-- GpuNotFoundError            no such GPU
     +-- InstanceNotFoundError       no such instance, on a GPU that is there
     +-- NotSupportedError           the GPU, its driver or its MIG mode cannot do this
     +-- InUseError                  processes hold the instance; ``pids`` names them
     +-- InsufficientResourcesError  the placement is taken, or engines are used up
     +-- GpuLostError                off the bus, or needs a reset
     +-- GpuReleasedError            released by this program, so that it may be reset
     +-- UndeliverableError          the driver makes no slice with what the profile advertises
     +-- ReadBackError               NVML said success, and what it then shows is something else
     +-- HangError                   a call has not come back; nothing is known of what it did

Codes outside this list are a plain NvmlError.
"""

from __future__ import annotations

from collections.abc import Iterable

import pynvml

from kubeletplugin.nvml.errors import HINTS, PASSING, SEE_PROCESSES, code_name

_USE_ANOTHER = "; use another profile"


class NvmlError(Exception):
    """An NVML call that did not succeed.

    ``operation`` is the function's name, ``code`` the nvmlReturn_t, ``gpu`` the UUID of the GPU or
    empty. The text has all of them, the code by name and number, and what to do about it.
    """

    def __init__(self, operation: str, code: int, *, gpu: str = "", detail: str = "") -> None:
        self.operation = operation
        self.code = code
        self.gpu = gpu
        where = f" on GPU {gpu}" if gpu else ""
        what = "; ".join(part for part in (detail, self.hint(code)) if part)
        super().__init__(
            f"{operation}{where}: {code_name(code)} ({code})" + (f": {what}" if what else "")
        )

    def hint(self, code: int) -> str:
        """Remedy for a code; empty where none is known."""
        return HINTS.get(code, "")

    @property
    def passing(self) -> bool:
        """True if the same call may succeed a little later by itself."""
        return self.code in PASSING


class DriverUnavailableError(NvmlError):
    """No library, no driver, or library and driver of different versions."""


class PermissionDeniedError(NvmlError):
    """Not root and no CAP_SYS_ADMIN."""


class GpuNotFoundError(NvmlError):
    """No such GPU."""


class InstanceNotFoundError(NvmlError):
    """No such instance, on a GPU that is there: it is gone, or never was."""


class NotSupportedError(NvmlError):
    """The GPU, its driver or its MIG mode cannot do this."""


class InUseError(NvmlError):
    """Processes hold the instance; ``pids`` are those that NVML could name.

    ``nameless``: it can name none to this process, whoever they are.
    """

    def __init__(  # noqa: PLR0913 - an NvmlError's, and who holds it
        self,
        operation: str,
        code: int,
        *,
        gpu: str = "",
        detail: str = "",
        pids: Iterable[int] = (),
        nameless: bool = False,
    ) -> None:
        self.pids = tuple(pids)
        if self.pids:
            held = "held by process " + ", ".join(str(p) for p in self.pids)
            detail = f"{detail}; {held}" if detail else held
        elif nameless:
            held = f"held by processes that cannot be named: to see them, {SEE_PROCESSES}"
            detail = f"{detail}; {held}" if detail else held
        super().__init__(operation, code, gpu=gpu, detail=detail)


class InsufficientResourcesError(NvmlError):
    """The placement is taken, or engines that the profile needs are used up."""


class GpuLostError(NvmlError):
    """The GPU is off the bus, or needs a reset."""


class UndeliverableError(NvmlError):
    """The driver makes no slice with what its profile advertises; the profile was asked for.

    ``deliverable`` is how many multiprocessors the driver itself says that a slice can have, where
    that is fewer than the profile advertises; 0 if it only refuses.
    """

    def __init__(  # noqa: PLR0913 - an NvmlError's, and what cannot be had
        self,
        operation: str,
        code: int,
        *,
        gpu: str,
        profile: str,
        detail: str,
        deliverable: int = 0,
    ) -> None:
        self.deliverable = deliverable
        what = f"profile {profile} cannot be had as it is advertised: {detail}"
        hint = f"; it is offered with {deliverable} from now on" if deliverable else ""
        super().__init__(operation, code, gpu=gpu, detail=f"{what}{hint or _USE_ANOTHER}")

    def hint(self, code: int) -> str:  # noqa: ARG002, D102 - said in the detail
        return ""


class GpuReleasedError(NvmlError):
    """The GPU is released by this program: no call is made for it, no handle taken."""

    def __init__(self, gpu: str) -> None:
        super().__init__(
            "nvmlDeviceGetHandleByPciBusId",
            pynvml.NVML_ERROR_NOT_READY,
            gpu=gpu,
            detail="this plugin has released the GPU, which is drained or to pause",
        )

    @property
    def passing(self) -> bool:
        """False: somebody works on the GPU, which does not end by itself."""
        return False


class ReadBackError(NvmlError):
    """NVML said success, and what it then shows is something else."""

    def __init__(self, operation: str, *, gpu: str, detail: str) -> None:
        super().__init__(operation, pynvml.NVML_SUCCESS, gpu=gpu, detail=detail)


class HangError(NvmlError):
    """A call has not come back in its time; it may yet, with or without an effect."""

    def __init__(self, operation: str, *, gpu: str, detail: str) -> None:
        super().__init__(operation, pynvml.NVML_ERROR_TIMEOUT, gpu=gpu, detail=detail)

    @property
    def passing(self) -> bool:
        """False: the program has waited for the call already."""
        return False


_KINDS: dict[int, type[NvmlError]] = {
    pynvml.NVML_ERROR_UNINITIALIZED: DriverUnavailableError,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: DriverUnavailableError,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: DriverUnavailableError,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: DriverUnavailableError,
    pynvml.NVML_ERROR_NO_PERMISSION: PermissionDeniedError,
    pynvml.NVML_ERROR_OPERATING_SYSTEM: PermissionDeniedError,
    pynvml.NVML_ERROR_NOT_FOUND: InstanceNotFoundError,
    pynvml.NVML_ERROR_NOT_SUPPORTED: NotSupportedError,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: NotSupportedError,
    pynvml.NVML_ERROR_IN_USE: InUseError,
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: InsufficientResourcesError,
    pynvml.NVML_ERROR_GPU_IS_LOST: GpuLostError,
    pynvml.NVML_ERROR_RESET_REQUIRED: GpuLostError,
}

_FINDS_GPUS = "nvmlDeviceGetHandleBy"


def translate(operation: str, code: int, *, gpu: str = "") -> NvmlError:
    """The error of this tree that stands for ``code``."""
    if code == pynvml.NVML_ERROR_NOT_FOUND and operation.startswith(_FINDS_GPUS):
        return GpuNotFoundError(operation, code, gpu=gpu)
    return _KINDS.get(code, NvmlError)(operation, code, gpu=gpu)
