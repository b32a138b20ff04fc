"""Node: a pod gets its slice, and whatever restarts or dies there, nothing is lost."""
