"""GPUs that are let go of, paused, or somebody else's."""
