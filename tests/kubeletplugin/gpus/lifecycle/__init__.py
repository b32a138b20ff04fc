"""GPUs that are released, paused, or somebody else's."""
