"""Queue of waiting claims and pods: the next to be served, and those that rest."""
