"""Site: what is drawn of a cluster, and what is changed in it."""
