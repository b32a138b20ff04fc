"""Kubelet's plugin protocols: the .proto files and what hack/generate_protos.py makes of them."""
