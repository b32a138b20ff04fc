"""Node: a real kubelet with its own container runtime, and the one image."""
