"""The embedded API server: what a real one does not have, and its parts."""
