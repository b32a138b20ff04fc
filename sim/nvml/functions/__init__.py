"""The C functions by area; importing this package enters them into the library."""

from sim.nvml.functions import compute_instances, gpu_instances
from sim.nvml.functions import devices as condition
from sim.nvml.functions import devices as devices
from sim.nvml.functions import devices as mig_devices
from sim.nvml.functions import devices as processes
from sim.nvml.functions import system as events
from sim.nvml.functions import system as system

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
