"""Sharing of devices by several processes: what is set for it on the node, and put back."""
