"""NVML over the simulated library."""
