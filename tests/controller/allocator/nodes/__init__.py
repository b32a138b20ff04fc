"""Nodes that are chosen: by what a pod needs besides a slice, and by preference."""
