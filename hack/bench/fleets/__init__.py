"""Fleets of GPUs without a cluster: requests drawn, decisions made, devices that are published."""
