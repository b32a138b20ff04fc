"""CEL of selectors."""
