"""The GPUs of this node: their state, their instances, and the owners of the instances."""
