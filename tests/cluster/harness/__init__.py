"""A real Kubernetes on loopback: control plane, one kubelet with containerd, fake nodes."""
