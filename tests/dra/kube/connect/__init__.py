"""Connections: addresses, credentials, TLS."""
