"""The reading half of a check: NVML, the host, kubelet, neighbours, the cluster."""
