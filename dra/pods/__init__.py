"""Pods, and the nodes that they fit."""
