"""The C functions by area; importing this package enters them into the library."""

from sim.nvml.functions import (
    compute_instances,
    condition,
    devices,
    events,
    gpu_instances,
    mig_devices,
    processes,
    system,
)

__all__ = [
    "compute_instances",
    "condition",
    "devices",
    "events",
    "gpu_instances",
    "mig_devices",
    "processes",
    "system",
]
