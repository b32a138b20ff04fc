"""Kinds of GPUs, and which of their devices selectors select."""
