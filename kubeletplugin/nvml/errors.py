"""NVML's errors as exceptions, whose texts tell an operator the remedy.

A code (nvmlReturn_t) that has no class of its own becomes a plain NvmlError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pynvml

from dra.claims.remedies import remedy
from dra.gpu.inventory import GpuReason

SEE_PROCESSES = "run the plugin in the host's pid namespace (hostPID: true)"
RELEASE_DCGM = (
    "DCGM releases it where the node is labelled nvidia.com/gpu.deploy.dcgm=false and "
    "nvidia.com/gpu.deploy.dcgm-exporter=false, until that is done"
)
"""Remedy against DCGM and its exporter, as the GPU operator runs them: they keep GPUs and instances
in use."""
_GPU = "<gpu>"
_node = "<node>"
_gpus: dict[str, str] = {}
"""Names ``gpu-<n>`` of the node's GPUs, by UUID, as far as they are known."""


def serve_node(name: str) -> None:
    """Set the node that all remedies of this process name; before, they say ``<node>``."""
    global _node  # noqa: PLW0603 - texts are made where nothing else of the node is known
    _node = name or _node


def serve_gpus(names: Mapping[str, str]) -> None:
    """Set the names of GPUs, by UUID, in all remedies of this process."""
    _gpus.update(names)


def node_name() -> str:
    """Name of the node in remedies; ``<node>`` before :func:`serve_node`."""
    return _node


def reset(uuid: str, *, node: str = "", gpu: str = "") -> str:
    """Remedy: reset of a GPU.

    ``gpu``: the GPU's name ``gpu-<n>`` for kubectl; that of ``serve_gpus`` if empty. Nobody can
    reset a GPU that a process has open, and this program has all its GPUs open. So the remedy
    begins with a drain, upon which this program releases the GPU.
    """
    name = gpu or _gpus.get(uuid, _GPU)
    return remedy(GpuReason.GPU_LOST, node=node or _node, gpu=name, uuid=uuid)


def enable_mig(uuid: str, *, node: str = "", gpu: str = "") -> str:
    """Remedy: MIG mode is to be turned on, while no client has the GPU open."""
    return _set_mig(1, uuid, node=node or _node, gpu=gpu or _gpus.get(uuid, _GPU))


def disable_mig(uuid: str, *, node: str, gpu: str, switches: bool) -> str:
    """Remedy: MIG mode is to be turned off; ``switches``: the GPU needs no reset for that."""
    other = ", or set migMode: switch in the class of the node" if switches else ""
    return f"{_set_mig(0, uuid, node=node, gpu=gpu)}{other}"


def _set_mig(mode: int, uuid: str, *, node: str, gpu: str) -> str:
    return (
        f"turn it {'on' if mode else 'off'} with: nvidia-smi -i {uuid} -mig {mode}, between "
        f"kubectl mig drain {node} {gpu} --wait and kubectl mig resume {node} {gpu}"
    )


def at_hand(text: str, *, gpu: str) -> str:
    """Text with the GPU's name put into remedies that were made without it."""
    return text.replace(_GPU, gpu)


_REMEDIES = {
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "changing MIG instances needs root or CAP_SYS_ADMIN; run the plugin as a privileged "
        "container"
    ),
    pynvml.NVML_ERROR_OPERATING_SYSTEM: (
        "the system denied access to the device; run the plugin as a privileged container"
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "load the NVIDIA kernel driver (modprobe nvidia)",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "libnvidia-ml.so.1 was not found; install the NVIDIA driver, or name the library's "
        "directory in LD_LIBRARY_PATH"
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "library and kernel module are of different driver versions; this plugin ends, and kubelet "
        "starts it anew, once a new process would load the right library; if it does not, reload "
        "the kernel module or reboot the node"
    ),
    pynvml.NVML_ERROR_IN_USE: "end the processes that use it",
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: (
        "the placement or an engine that it needs is taken; compare nvidia-smi mig -lgi"
    ),
    pynvml.NVML_ERROR_NOT_SUPPORTED: "check the GPU's MIG mode and the driver's version",
}
_PASSING = frozenset(
    {
        pynvml.NVML_ERROR_IN_USE,
        pynvml.NVML_ERROR_TIMEOUT,
        pynvml.NVML_ERROR_NOT_READY,
        pynvml.NVML_ERROR_UNKNOWN,
    }
)
_NAMES: dict[int, str] = {
    value: name.removeprefix("NVML_ERROR_")
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int)
} | {pynvml.NVML_SUCCESS: "SUCCESS"}


def code_name(code: int) -> str:
    """The name of an nvmlReturn_t without its prefix: ``NO_PERMISSION``."""
    return _NAMES.get(code, "unlisted code")


class NvmlError(Exception):
    """An NVML call that did not succeed.

    ``operation``: name of the function. ``code``: its nvmlReturn_t. ``gpu``: UUID of the GPU,
    empty for a call about none. The error's text has all three, with the code's name and the
    remedy.
    """

    def __init__(self, operation: str, code: int, *, gpu: str = "", detail: str = "") -> None:
        self.operation = operation
        self.code = code
        self.gpu = gpu
        where = f" on GPU {gpu}" if gpu else ""
        what = "; ".join(part for part in (detail, self.remedy()) if part)
        super().__init__(
            f"{operation}{where}: {code_name(code)} ({code})" + (f": {what}" if what else "")
        )

    def remedy(self) -> str:
        """Remedy for the code; empty where none is known."""
        uuid = self.gpu.partition(" ")[0] or "<uuid>"  # "GPU-... (events)"
        if self.code == pynvml.NVML_ERROR_RESET_REQUIRED:
            return reset(uuid)
        if self.code == pynvml.NVML_ERROR_GPU_IS_LOST:
            return f"the GPU fell off the bus; {reset(uuid)}"
        return _REMEDIES.get(self.code, "")

    @property
    def passing(self) -> bool:
        """True if the same call may succeed a little later, although nobody does anything."""
        return self.code in _PASSING


class DriverUnavailableError(NvmlError):
    """NVML cannot be used: no library, no driver, or both of different versions."""


class PermissionDeniedError(NvmlError):
    """This process may not change the GPU: it is not root, or lacks CAP_SYS_ADMIN."""


class GpuNotFoundError(NvmlError):
    """The machine has no such GPU."""


class InstanceNotFoundError(NvmlError):
    """The GPU is there and has no such instance."""


class NotSupportedError(NvmlError):
    """The GPU, its driver or its MIG mode cannot do this."""


class InUseError(NvmlError):
    """The GPU or instance is in use. ``pids``: ids of the processes that NVML names.

    ``nameless``: NVML cannot name processes to this process at all.
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
        held = ""
        if self.pids:
            held = "held by process " + ", ".join(str(p) for p in self.pids)
        elif nameless:
            held = f"held by processes that cannot be named: to see them, {SEE_PROCESSES}"
        super().__init__(operation, code, gpu=gpu, detail="; ".join(filter(None, (detail, held))))


class InsufficientResourcesError(NvmlError):
    """The placement is taken, or engines that the profile needs are used up."""


class GpuLostError(NvmlError):
    """The GPU is off the bus, or needs a reset."""


class UndeliverableError(NvmlError):
    """The driver makes no slice that has what its profile advertises.

    ``deliverable``: number of multiprocessors that such a slice can have by the driver's own word,
    fewer than the profile advertises; 0 if the driver only refuses.
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
        remedy = f"it is offered with {deliverable} from now on" if deliverable else ""
        super().__init__(
            operation, code, gpu=gpu, detail=f"{what}; {remedy or 'use another profile'}"
        )

    def remedy(self) -> str:
        """Empty: the error's detail has the remedy."""
        return ""


class GpuReleasedError(NvmlError):
    """This program has released the GPU: it makes no call for it and takes no handle of it."""

    def __init__(self, gpu: str) -> None:
        super().__init__(
            "nvmlDeviceGetHandleByPciBusId",
            pynvml.NVML_ERROR_NOT_READY,
            gpu=gpu,
            detail="this plugin has released the GPU, which is drained or to pause",
        )

    @property
    def passing(self) -> bool:
        """False: an administrator's drain or pause has to end first."""
        return False


class ReadBackError(NvmlError):
    """NVML said success, and a look afterwards shows another result."""

    def __init__(self, operation: str, *, gpu: str, detail: str) -> None:
        super().__init__(operation, pynvml.NVML_SUCCESS, gpu=gpu, detail=detail)


class HangError(NvmlError):
    """A call has not returned within its deadline; it may still do so, with or without effect."""

    def __init__(self, operation: str, *, gpu: str, detail: str) -> None:
        super().__init__(operation, pynvml.NVML_ERROR_TIMEOUT, gpu=gpu, detail=detail)

    @property
    def passing(self) -> bool:
        """False: the whole deadline was waited for already."""
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


def translate(operation: str, code: int, *, gpu: str = "") -> NvmlError:
    """The exception for ``code``, of the class of this module that stands for it."""
    if code == pynvml.NVML_ERROR_NOT_FOUND and operation.startswith("nvmlDeviceGetHandleBy"):
        return GpuNotFoundError(operation, code, gpu=gpu)
    return _KINDS.get(code, NvmlError)(operation, code, gpu=gpu)


def is_mismatch(error: Exception) -> bool:
    """True if NVML says that its version is not the kernel module's."""
    mismatch = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    return isinstance(error, NvmlError) and error.code == mismatch
