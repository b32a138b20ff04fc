"""The NVML library in this process: its session, its handles, the calls inside it."""
