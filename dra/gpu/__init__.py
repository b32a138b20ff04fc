"""The GPUs of one node as values: geometry, names, inventory, what is held of them."""
