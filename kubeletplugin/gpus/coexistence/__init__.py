"""Other programs that manage or pause this node's GPUs."""
