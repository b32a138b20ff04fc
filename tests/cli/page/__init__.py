"""The page of a cluster: its content, its server, and itself in a browser."""
