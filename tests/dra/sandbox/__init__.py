"""Sandbox in which selectors of tenants are evaluated."""
