"""A cluster in a box: simulated NVML, an embedded Kubernetes API, stand-ins for its programs."""
