"""Calls and files that fail or are damaged."""
