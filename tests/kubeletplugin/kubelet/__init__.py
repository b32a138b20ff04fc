"""Kubelet's protocol over the sockets."""
