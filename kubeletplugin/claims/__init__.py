"""Claims on this node: who works on one, and when."""
