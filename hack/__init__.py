"""Scripts of the people who work on this."""
