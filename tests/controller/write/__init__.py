"""Writes: refused, lost, under way and late."""
