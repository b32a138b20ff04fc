"""Shares of GPUs and of slices, and looks at whole GPUs."""
