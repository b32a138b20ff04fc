"""ResourceSlices: what is published where kube-scheduler allocates."""
