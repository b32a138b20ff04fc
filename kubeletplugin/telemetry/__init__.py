"""Metrics, logs, events and liveness of the plugin."""
