"""ResourceSlices, published where kube-scheduler allocates."""
