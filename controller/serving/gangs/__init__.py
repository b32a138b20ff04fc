"""Service of gangs: pods that are allocated all or none."""
