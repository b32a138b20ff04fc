"""Limits of pods that become claims."""
