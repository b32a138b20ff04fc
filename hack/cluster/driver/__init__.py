"""The driver on a cluster: its chart, installed, and its pods."""
