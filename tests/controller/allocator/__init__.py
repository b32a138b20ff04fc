"""Decisions as the controller makes them: node, GPU and placement of a pod's claims."""
