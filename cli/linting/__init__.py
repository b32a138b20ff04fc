"""What can be told of manifests without a cluster."""
