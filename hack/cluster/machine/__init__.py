"""Processes, mounts and cgroups of this machine, and how to be rid of them."""
