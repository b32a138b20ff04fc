"""Metrics, logs, events, liveness and readiness of the plugin."""
