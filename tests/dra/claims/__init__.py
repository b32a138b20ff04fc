"""Claims and classes as they are read."""
