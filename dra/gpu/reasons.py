"""Reasons of GPUs and of the devices on them. Programs read them: keep them.

The same words stand in MigNodes, in the taints of ResourceSlices, in the conditions of claims, in
events and in the answers of ``kubectl mig explain``.
"""

from __future__ import annotations

from enum import StrEnum


class GpuReason(StrEnum):
    """Reason why a GPU, or a device on it, is not given out or not usable."""

    NO_MIG = "NoMIG"
    MIG_OFF = "MIGDisabled"
    MIG_PENDING = "MIGModePending"
    DRAINED = "Drained"
    RELEASED = "GpuReleased"
    """The node's plugin has nothing of the GPU open, so that it may be reset."""
    PAUSED = "GpuClientsPaused"
    MIG_MANAGER = "MIGManagerActive"
    DEVICE_PLUGIN = "DevicePluginActive"
    NVIDIA_DRA = "NvidiaDraDriverActive"
    LAYOUT_PENDING = "LayoutPending"
    """The node's mode wants something else of the GPU, which is not made yet."""
    LAYOUT_FAILED = "LayoutFailed"
    """The node's mode wants something of the GPU that cannot be made."""
    UNAVAILABLE = "Unavailable"
    """The plugin gives nothing of the GPU out, without saying why in a word."""
    NOT_READY = "DriverNotReady"
    NO_PERMISSION = "NoPermission"
    NVML_ERROR = "NVMLError"
    NVML_HANG = "NVMLHang"
    XID_ERROR = "XidError"
    RECOVERY_REQUIRED = "GpuRecoveryRequired"
    """The driver asks for a reset or reboot; what runs on the GPU is ill too."""
    RECOVERY_ADVISED = "GpuRecoveryAdvised"
    """The driver asks that nothing new begins on the GPU; what runs may go on."""
    FABRIC_NOT_READY = "FabricNotReady"
    COMPUTE_MODE = "ComputeModeRestricted"
    VIRTUALIZED = "GpuVirtualized"
    CONFIDENTIAL = "ConfidentialNotReady"
    GPU_LOST = "GpuLost"
    SLICE_LOST = "SliceLost"
    MPS_DOWN = "MpsDaemonDown"
    """The daemon that shares a claim's device among its clients does not serve."""
    CREATION_FAILED = "CreationFailed"
    """A slice could not be made on the GPU lately."""
