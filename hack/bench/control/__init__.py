"""Loads on a control plane: nodes, pods and claims as objects, and what becomes of them."""
