"""Volumes of a pod: the claims that it names, and the nodes that these bind it to."""
