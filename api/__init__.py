"""Interfaces to others: opaque configuration, the MigNode resource, kubelet's plugin protocols."""
