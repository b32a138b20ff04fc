"""Interfaces to users, Kubernetes and kubelet: configuration, MigNode, kubelet's protocols."""
