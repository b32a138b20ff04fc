"""Devices that are chosen: how many, which together, by size, alternative or policy."""
