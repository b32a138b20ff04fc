"""Claims on this node: the work on each, and its timing."""
