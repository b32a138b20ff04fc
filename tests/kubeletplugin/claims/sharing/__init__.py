"""Sharing of GPUs and slices by claims: MPS, time slices, and looks at whole GPUs."""
