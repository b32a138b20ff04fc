"""Patches of objects: JSON patch, merge patch, strategic merge patch."""
