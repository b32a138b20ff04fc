"""A cluster in a box: simulated NVML, an embedded Kubernetes API, kubelet and scheduler stand-ins."""
