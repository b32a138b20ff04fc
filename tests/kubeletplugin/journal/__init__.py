"""Journal on disk."""
