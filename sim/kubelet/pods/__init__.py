"""Pods of a node: their life, status, containers, CDI edits and logs."""
