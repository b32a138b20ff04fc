"""Gangs: pods that are allocated all or none, whichever system says so. Pure."""
