"""Stories of a node, told at random."""
