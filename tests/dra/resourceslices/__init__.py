"""ResourceSlices: ours, and those of NVIDIA's driver."""
