"""Sandbox for tenants' CEL: a process of its own, as CEL may want more memory than there is."""
