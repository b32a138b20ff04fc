"""Telemetry: metrics, and listeners to changes of the node."""
