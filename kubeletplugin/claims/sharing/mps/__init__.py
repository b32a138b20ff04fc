"""MPS daemons, one a claim, each a pod of its own."""
