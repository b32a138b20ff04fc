"""The driver's files on the host, and what of them a container gets."""
