"""Kubelet's protocol for the registration of plugins."""
