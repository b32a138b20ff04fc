"""Sharing of GPUs and slices."""
