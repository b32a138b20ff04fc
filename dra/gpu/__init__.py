"""The GPUs of one node as values: geometry, names, inventory, holdings."""
