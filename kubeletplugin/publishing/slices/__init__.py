"""ResourceSlices of this node."""
