"""Allocator: scores of placements, and how full GPUs are."""
