"""Monitoring of a daemon over HTTP: metrics for Prometheus, probes for kubelet."""

PREFIX = "mig_dra_"
"""Prefix of the names of our metrics."""

WHOLE_GPU = "gpu"
"""Value of the label ``profile`` for a GPU that is given out whole."""
