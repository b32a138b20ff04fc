"""The GPUs of this node: what is on them, and whose it is."""
