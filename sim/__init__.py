"""A cluster in a box: simulated NVML, an embedded Kubernetes API, and stand-ins for its programs."""
