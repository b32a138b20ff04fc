"""Failures of nodes to make what was allocated: what becomes of the claims and their pods."""
