"""Gangs: all of their pods get slices, or none."""
