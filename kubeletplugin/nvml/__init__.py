"""NVML, the only way to the hardware: one session, its errors translated once."""
