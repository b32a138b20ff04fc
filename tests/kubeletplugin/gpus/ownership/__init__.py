"""Ownership of instances: whose is what is found on a GPU."""
