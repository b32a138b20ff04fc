"""Slices that were lost, or taken by others."""
