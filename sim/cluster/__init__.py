"""A whole simulated cluster: its processes, and the tour through it."""
