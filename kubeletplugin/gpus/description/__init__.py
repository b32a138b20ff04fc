"""Description of GPUs for publishing: their state, and what is on them."""
