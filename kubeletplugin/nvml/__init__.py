"""NVML, this program's only access to the hardware: one session, and its errors as exceptions."""
