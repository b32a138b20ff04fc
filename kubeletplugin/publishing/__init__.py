"""Publications of this node: its MigNode, its ResourceSlices, and the statuses of claims."""
