"""Cluster as the controller knows it: what is mirrored, kept and read anew."""
