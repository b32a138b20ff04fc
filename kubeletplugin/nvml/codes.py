"""Codes that NVML's functions return (nvmlReturn_t): their names, remedies, and which pass."""

from __future__ import annotations

import pynvml

from kubeletplugin.nvml.errors import reset

HINTS = {
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
    pynvml.NVML_ERROR_GPU_IS_LOST: "the GPU fell off the bus; reboot the node",
    pynvml.NVML_ERROR_RESET_REQUIRED: reset("<uuid>"),
    pynvml.NVML_ERROR_IN_USE: "end the processes that use it",
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: (
        "the placement or an engine that it needs is taken; compare nvidia-smi mig -lgi"
    ),
    pynvml.NVML_ERROR_NOT_SUPPORTED: "check the GPU's MIG mode and the driver's version",
}
"""Remedies by code, for those of which one is known."""

PASSING = frozenset(
    {
        pynvml.NVML_ERROR_IN_USE,
        pynvml.NVML_ERROR_TIMEOUT,
        pynvml.NVML_ERROR_NOT_READY,
        pynvml.NVML_ERROR_UNKNOWN,
    }
)
"""Codes after which the same call may succeed a little later by itself."""

_NAMES: dict[int, str] = {
    value: name.removeprefix("NVML_ERROR_")
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int)
}


def code_name(code: int) -> str:
    """The name of an nvmlReturn_t without its prefix: ``NO_PERMISSION``."""
    if code == pynvml.NVML_SUCCESS:
        return "SUCCESS"
    return _NAMES.get(code, "unlisted code")
