"""Kueue, the real one, beside the driver."""
