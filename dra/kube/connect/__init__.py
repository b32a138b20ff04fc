"""Connections to an API server, from a kubeconfig or a service account."""
