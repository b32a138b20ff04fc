"""Leases, and the one leader who holds one."""
