"""Kubernetes over plain dicts: transport, reflector, Lease elector, events."""
