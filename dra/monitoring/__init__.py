"""What a daemon shows of itself over HTTP: metrics for Prometheus, probes for kubelet."""

PREFIX = "mig_dra_"
"""Begins the name of every metric of ours."""
