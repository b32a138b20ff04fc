"""Kubelet's protocol for the health of devices."""
