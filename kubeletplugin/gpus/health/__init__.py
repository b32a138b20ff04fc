"""The health of GPUs and slices."""
