"""Errors of a cluster."""


class ClusterError(Exception):
    """A part of the cluster ended, or did not get there in time; the message has its last words."""
