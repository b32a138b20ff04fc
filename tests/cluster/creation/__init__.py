"""Creation of slices: ahead of kubelet, before the allocation, again, and elsewhere."""
