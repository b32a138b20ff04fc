"""Publications of this node: its MigNode and the statuses of claims."""
