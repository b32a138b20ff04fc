"""A real Kubernetes on one machine, from its binaries: control plane, nodes, our driver."""
