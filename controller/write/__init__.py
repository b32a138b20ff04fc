"""Writes to the API server, in flight and handed over."""
