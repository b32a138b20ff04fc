"""The page of a cluster in a browser: placement maps, who waits and why, and what happened."""
