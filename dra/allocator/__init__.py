"""The one judge of which node, GPU and placement a claim gets, and why none. Pure."""
