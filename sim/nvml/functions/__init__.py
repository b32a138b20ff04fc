"""The C functions by area; importing this package enters them into the library."""

from sim.nvml.functions import compute_instances, devices, gpu_instances, system

__all__ = ["compute_instances", "devices", "gpu_instances", "system"]
