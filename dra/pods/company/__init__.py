"""Company of a pod: the others that it seeks or shuns, or is spread with."""
