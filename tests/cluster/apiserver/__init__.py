"""API server: what only a real one accepts, refuses, or says."""
