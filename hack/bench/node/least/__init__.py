"""Floor of the node program's benchmark: a driver that does the least for a claim."""
