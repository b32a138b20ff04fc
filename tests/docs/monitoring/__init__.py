"""Monitoring: metrics, their joins, and events."""
