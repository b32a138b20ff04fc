"""Helpers: a node whose program can be stopped at each step, and what has to agree on it."""
