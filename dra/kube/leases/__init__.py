"""Leases: one leader at a time."""
