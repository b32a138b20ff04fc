"""GPUs: what is cut, what MIG mode does to it, and who is in it."""
