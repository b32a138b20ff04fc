"""Ownership of GPU instances: which ones are ours."""
