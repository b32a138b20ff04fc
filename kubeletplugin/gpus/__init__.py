"""The GPUs of this node: their state, the instances on them, and the owners of those."""
