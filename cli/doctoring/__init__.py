"""What could be wrong with an installation, and how it would be seen from the cluster's objects."""
