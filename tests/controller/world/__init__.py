"""World in which everything happens at random."""
