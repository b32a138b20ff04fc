"""Declared geometries of GPUs: which is whose, and where its slices lie."""
