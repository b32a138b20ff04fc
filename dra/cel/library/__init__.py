"""Functions that Kubernetes adds to CEL."""
