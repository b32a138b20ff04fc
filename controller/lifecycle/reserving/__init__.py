"""Slices that are made before their claims are allocated."""
