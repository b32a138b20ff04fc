"""Neighbours that manage or pause this node's GPUs."""
