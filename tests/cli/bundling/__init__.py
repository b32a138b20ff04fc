"""Bundle for a helper."""
