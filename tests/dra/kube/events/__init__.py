"""Events of the programs."""
