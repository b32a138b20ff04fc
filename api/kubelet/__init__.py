"""Kubelet's plugin protocols: .proto files, and the code that hack/generate_protos.py makes."""
