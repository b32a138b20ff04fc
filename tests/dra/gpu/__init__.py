"""GPUs: geometry, names, shares, and their MigNode."""
