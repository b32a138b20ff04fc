"""A process of its own for what tenants wrote: CEL that may want more memory than there is."""
