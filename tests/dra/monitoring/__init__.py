"""Monitoring of a daemon."""
