"""The mirrored cluster."""
