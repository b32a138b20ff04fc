"""Ownership of fields: managedFields and server-side apply."""
