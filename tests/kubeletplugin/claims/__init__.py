"""Claims on the node: prepared, shared, ended and found again."""
