"""Plugin registration v1."""
