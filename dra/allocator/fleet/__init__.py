"""All GPUs of the cluster as the allocator sees them."""
